/* The supervisor as a small static program: PID 1 of a container, the same protocol as supervisor.sh (described there) at a
 * fraction of its processor time, because it costs a command no process but the command's own shell.
 *
 * It is compiled on the node (native.py) and mounted read-only into containers; where that cannot be, supervisor.sh serves.
 * A command's output comes through a pipe that no earlier process knows; the first HEAD bytes are kept, then the last TAIL.
 * Arguments: FOLDER (a private tmpfs) PIDS_LIMIT RUNNER DUMP (what bash runs for a command, and to print what login adds)
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOGIN_MS 60000 /* that the first login shell may take: the image's own */
#define RELOGIN_MS 10000 /* that later ones may: commands have changed the files */
#define REAP_MS 3000 /* that killed processes may take to be gone */
#define DRAIN_MOST (2 << 20) /* of what a daemon prints while the output is collected; a pipe holds less */
#define RETAINED (1 << 20) /* bytes of output buffers that are kept for the next command */

static char *runner, *dump, bash[4096], **child_env, **login_env;
static long pids_limit;
static int changes; /* signalfd of SIGCHLD */
static pid_t child;
static int child_status;

typedef struct {
    char *data;
    size_t size, most; /* allocated; never more than `most` */
    unsigned long long count; /* bytes put in; those beyond `most` overwrite the oldest */
} Buffer;

static Buffer head, tail;

static long long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void nap(int ms) {
    poll(NULL, 0, ms);
}

/* Collect the dead: our own child's status is remembered, orphans of commands are only let go. */
static void reap(void) {
    struct signalfd_siginfo news;
    int status;
    pid_t pid;
    while (read(changes, &news, sizeof news) > 0) continue;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == child) child_status = status, child = 0;
}

/* Input. */

static char in[65536];
static size_t in_at, in_end;

static void more(void) {
    struct pollfd wait[2] = {{0, POLLIN, 0}, {changes, POLLIN, 0}};
    for (;;) {
        ssize_t got;
        poll(wait, 2, -1);
        if (wait[1].revents) reap();
        if (!wait[0].revents) continue;
        got = read(0, in, sizeof in);
        if (got > 0) {
            in_at = 0, in_end = got;
            return;
        }
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (getpid() != 1) exit(0);
        wait[0].fd = -1; /* nobody will write any more */
    }
}

static void take(char *to, size_t count) {
    while (count) {
        size_t part;
        if (in_at == in_end) more();
        part = in_end - in_at < count ? in_end - in_at : count;
        memcpy(to, in + in_at, part);
        in_at += part, to += part, count -= part;
    }
}

static void take_line(char *to, size_t size) {
    size_t length = 0;
    for (;;) {
        char byte;
        take(&byte, 1);
        if (byte == '\n') break;
        if (length < size - 1) to[length++] = byte;
    }
    to[length] = 0;
}

static int write_all(int to, const char *data, size_t count) {
    while (count) {
        ssize_t put = write(to, data, count);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return -1;
        data += put, count -= put;
    }
    return 0;
}

/* Output. */

static void put(Buffer *buffer, const char *data, size_t count) {
    while (count) {
        size_t at = buffer->count % buffer->most, part = buffer->most - at;
        if (part > count) part = count;
        if (at + part > buffer->size) {
            size_t wanted = buffer->size * 2 > at + part ? buffer->size * 2 : at + part;
            char *grown = realloc(buffer->data, wanted < buffer->most ? wanted : buffer->most);
            if (!grown) return; /* counted by the caller, and lost: the container's memory is full */
            buffer->data = grown, buffer->size = wanted < buffer->most ? wanted : buffer->most;
        }
        memcpy(buffer->data + at, data, part);
        buffer->count += part, data += part, count -= part;
    }
}

static void empty(Buffer *buffer, size_t most) {
    if (buffer->size > RETAINED || buffer->size > most) free(buffer->data), buffer->data = NULL, buffer->size = 0;
    buffer->most = most, buffer->count = 0;
}

/* Read once from `output`: bytes taken, 0 at its end (every writer has gone), -1 where there is nothing now. */
static ssize_t absorb(int output, unsigned long long *total) {
    static char data[65536];
    ssize_t got = read(output, data, sizeof data);
    size_t first;
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR) ? -1 : 0;
    *total += got;
    first = head.most - head.count < (size_t)got ? head.most - head.count : (size_t)got;
    put(&head, data, first);
    put(&tail, data + first, got - first);
    return got;
}

/* Processes. */

static long processes(void) { /* as the pids limit counts them; 0 where that cannot be read */
    static const char *const places[] = {"/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current"};
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(places[i], "re");
        long count = 0;
        if (!file) continue;
        if (fscanf(file, "%ld", &count) != 1) count = 0;
        fclose(file);
        return count;
    }
    return 0;
}

static int alone(void) { /* whether no process but this one (and, for a stand-in, the first) is left */
    reap();
    return kill(-1, 0) < 0 && errno == ESRCH;
}

static void end_all(void) {
    long long until = milliseconds() + (getpid() == 1 ? REAP_MS : REAP_MS / 10); /* a stand-in cannot reap orphans */
    while (!alone() && milliseconds() < until) {
        kill(-1, SIGKILL);
        nap(1);
    }
}

/* A child in a session of its own with stdin closed; `out` is its stdout and stderr, `nine` its descriptor 9, `three` 3. */
static int start(char *const command[], char *const env[], int out, int three, int nine) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    int error = 0;
    sigemptyset(&none), sigfillset(&all);
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (out >= 0) posix_spawn_file_actions_adddup2(&files, out, 1);
    else posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (three >= 0) posix_spawn_file_actions_adddup2(&files, three, 3);
    if (nine >= 0) posix_spawn_file_actions_adddup2(&files, nine, 9);
    for (int tries = 0; tries < 5; tries++) { /* left-over daemons must not starve a command of processes or memory */
        error = posix_spawn(&child, bash, &files, &how, command, env);
        if (error != EAGAIN && error != ENOMEM) break;
        end_all();
    }
    if (error) child = 0;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    return error;
}

/* Whether a process of the session is left; each gets SIGKILL. */
static int kill_members(pid_t session) {
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int found = 0;
    if (!folder) return 0;
    while ((entry = readdir(folder))) {
        char path[300], text[1024], *rest, state;
        int pid = atoi(entry->d_name), file, sid;
        ssize_t got;
        if (pid <= 1 || pid == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0) continue;
        got = read(file, text, sizeof text - 1);
        close(file);
        if (got <= 0) continue;
        text[got] = 0;
        rest = strrchr(text, ')'); /* the name before it may hold anything */
        if (!rest || sscanf(rest + 1, " %c %*d %*d %d", &state, &sid) != 2) continue;
        if (sid == session && state != 'Z' && state != 'X') found = 1, kill(pid, SIGKILL);
    }
    closedir(folder);
    return found;
}

/* Kill what is left of a command; a daemon (in a new session) may stay. */
static void end_session(pid_t session) {
    long long until = milliseconds() + REAP_MS;
    kill(-session, SIGKILL);
    for (int tries = 0; !alone() && kill_members(session); tries++) { /* until no member was forked meanwhile */
        if (tries == 50) {
            kill(-1, SIGKILL);
            break;
        }
        nap(tries < 5 ? 0 : 1);
    }
    while (child && milliseconds() < until) {
        struct pollfd wait = {changes, POLLIN, 0};
        poll(&wait, 1, 100);
        reap();
    }
}

/* What a login shell adds (conda and the like) is taken once, and again when a start-up file is as new as the copy: file
   times have the grain of the clock's ticks, so one of the same tick may have been changed after it. */

static const char *startup[16] = {"/etc/profile", "/etc/profile.d", "/etc/bash.bashrc"};

static void find_startup(void) {
    static const char *const names[] = {".bash_profile", ".bash_login", ".profile", ".bashrc"};
    const char *home = getenv("HOME");
    int count = 3;
    for (int i = 0; i < 4 && home; i++)
        if (asprintf((char **)&startup[count], "%s/%s", home, names[i]) > 0) count++;
    startup[count] = getenv("BASH_ENV");
}

static int as_new(const char *path, const struct stat *than) {
    struct stat found;
    if (stat(path, &found) < 0) return 0;
    if (found.st_mtim.tv_sec != than->st_mtim.tv_sec) return found.st_mtim.tv_sec > than->st_mtim.tv_sec;
    return found.st_mtim.tv_nsec >= than->st_mtim.tv_nsec;
}

static int outdated(void) {
    struct stat login;
    struct dirent *entry;
    int found = 0;
    DIR *folder;
    if (stat("login", &login) < 0) return 1;
    for (int i = 0; startup[i]; i++)
        if (as_new(startup[i], &login)) return 1;
    if (!(folder = opendir(startup[1]))) return 0;
    while (!found && (entry = readdir(folder))) {
        char path[300];
        snprintf(path, sizeof path, "%s/%.255s", startup[1], entry->d_name);
        found = entry->d_name[0] != '.' && as_new(path, &login);
    }
    closedir(folder);
    return found;
}

static void take_login(void) {
    char *command[] = {bash, "-lc", dump, NULL};
    static int taken;
    long long until = milliseconds() + (taken ? RELOGIN_MS : LOGIN_MS);
    int to = open("login.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    pid_t pid;
    if (to < 0) return;
    if (!start(command, login_env, -1, -1, to)) {
        pid = child;
        while (child && milliseconds() < until) {
            struct pollfd wait = {changes, POLLIN, 0};
            poll(&wait, 1, 1000);
            reap();
        }
        end_session(pid);
    }
    futimens(to, NULL); /* now: newer than the files that it was taken from */
    close(to);
    rename("login.new", "login");
    taken = 1;
}

/* One command. */

static int copy_command(size_t count) {
    int to = memfd_create("command", MFD_CLOEXEC);
    while (count) {
        size_t part;
        if (in_at == in_end) more();
        part = in_end - in_at < count ? in_end - in_at : count;
        if (to >= 0 && write_all(to, in + in_at, part) < 0) close(to), to = -1;
        in_at += part, count -= part;
    }
    if (to >= 0) lseek(to, 0, SEEK_SET);
    return to;
}

static void answer(const char *id, int code, int expired, long long took, unsigned long long total) {
    size_t kept = tail.count < tail.most ? tail.count : tail.most, at = tail.count > tail.most ? tail.count % tail.most : 0;
    char line[256];
    int length = snprintf(
        line, sizeof line, "done %s %d %d %lld %llu %zu %llu\n", id, code, expired, took, head.count, kept, total);
    if (head.count < sizeof in - sizeof line && !kept) { /* the usual case in one write; `in` is read anew after this */
        static char whole[sizeof in];
        memcpy(whole, line, length);
        if (head.count) memcpy(whole + length, head.data, head.count);
        write_all(1, whole, length + head.count);
        return;
    }
    write_all(1, line, length);
    write_all(1, head.data, head.count);
    write_all(1, tail.data + at, kept - at);
    write_all(1, tail.data, at);
}

/* Wait for the child until the deadline and take in its output. Whether it has ended in time. */
static int watch(int output, long long until, unsigned long long *total) {
    struct pollfd wait[2] = {{output, POLLIN, 0}, {changes, POLLIN, 0}};
    while (child) {
        long long left = until - milliseconds();
        if (left <= 0) return 0;
        poll(wait, 2, left < 1000000 ? left : 1000000);
        if (wait[0].revents && !absorb(output, total)) wait[0].fd = -1;
        if (wait[1].revents) reap();
    }
    return 1;
}

static void run(const char *header) {
    char id[64], end[64], *preamble;
    size_t keep_first, keep_last, preamble_size, command_size;
    long long timeout, started = milliseconds();
    unsigned long long total = 0, after;
    int output[2], command, code = 126, expired = 0;
    pid_t session;
    ssize_t got;
    int words = sscanf(
        header, "run %63s %lld %zu %zu %zu %zu", id, &timeout, &keep_first, &keep_last, &preamble_size, &command_size);
    if (words != 6) return;
    if (preamble_size > (16u << 20) || !(preamble = malloc(preamble_size + 1))) return;
    take(preamble, preamble_size), preamble[preamble_size] = 0;
    command = copy_command(command_size);
    take_line(end, sizeof end);
    if (strcmp(end, id) || command < 0) { /* its sender died while sending it, or there is no memory: nothing was run */
        free(preamble);
        if (command >= 0) close(command);
        return;
    }
    empty(&head, keep_first ? keep_first : 1), empty(&tail, keep_last ? keep_last : 1);
    if (outdated()) take_login(), started = milliseconds();
    if (pipe2(output, O_CLOEXEC) == 0) {
        char *shell[] = {bash, "--norc", "--noprofile", "-c", runner, "bash", preamble, NULL};
        fcntl(output[0], F_SETFL, O_NONBLOCK);
        if (!start(shell, child_env, output[1], command, -1)) {
            session = child, child_status = 0;
            close(output[1]), output[1] = -1;
            expired = !watch(output[0], started + timeout, &total);
            end_session(session);
            if (expired) end_all();
            code = expired ? 124 : WIFEXITED(child_status) ? WEXITSTATUS(child_status) : 128 + WTERMSIG(child_status);
            for (after = total; total - after < DRAIN_MOST && (got = absorb(output[0], &total)) > 0;) continue;
            if (pids_limit && !alone() && processes() > pids_limit / 2) end_all();
        }
        close(output[0]);
        if (output[1] >= 0) close(output[1]);
    }
    close(command);
    free(preamble);
    answer(id, code, expired, milliseconds() - started, total);
}

static int find_bash(void) {
    const char *path = getenv("PATH"), *end;
    for (path = path && *path ? path : "/usr/local/bin:/usr/bin:/bin"; *path; path = *end ? end + 1 : end) {
        end = strchrnul(path, ':');
        snprintf(bash, sizeof bash, "%.*s/bash", (int)(end - path), path);
        if (bash[0] == '/' && access(bash, X_OK) == 0) return 1;
    }
    return 0;
}

static void make_environments(void) {
    int count = 0, kept = 0;
    login_env = environ;
    while (environ[count]) count++;
    child_env = calloc(count + 2, sizeof *child_env);
    for (int i = 0; child_env && i < count; i++)
        if (strncmp(environ[i], "BASH_ENV=", 9)) child_env[kept++] = environ[i];
    if (child_env) child_env[kept] = "BASH_ENV=";
}

int main(int count, char **arguments) {
    sigset_t all, dead;
    char line[4096];
    if (count != 5) return 2;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no command, though it be root here, may trace PID 1 or write to its memory */
    pids_limit = atol(arguments[2]), runner = arguments[3], dump = arguments[4];
    if (!find_bash()) return 127;
    if (chdir(arguments[1]) < 0 && (mkdir(arguments[1], 0755) < 0 || chdir(arguments[1]) < 0)) return 1;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    sigemptyset(&dead), sigaddset(&dead, SIGCHLD);
    changes = signalfd(-1, &dead, SFD_CLOEXEC | SFD_NONBLOCK);
    make_environments();
    if (changes < 0 || !child_env) return 1;
    umask(022);
    find_startup();
    if (getpid() != 1) end_all(); /* a stand-in: what the one before it ran is over */
    for (;;) {
        take_line(line, sizeof line);
        if (!strncmp(line, "hello ", 6)) dprintf(1, "ready %s\n", line + 6);
        else if (!strncmp(line, "run ", 4)) run(line);
    }
}
