"""The training driver: sample groups of attempts, grade them, update the policy, give the new weights to the engines.

Where the guard says that the policy has collapsed, the run goes on from its last good checkpoint, with other tasks.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from swe_rl.cluster.preflight import check_disk, check_inputs
from swe_rl.cluster.processes import end_recorded_processes
from swe_rl.cluster.session import Session, training_session
from swe_rl.config import Config
from swe_rl.errors import DataError, SweRlError, UsageError
from swe_rl.evaluate.held_out import choose, rates
from swe_rl.observe.logs import set_up_logging
from swe_rl.observe.metrics import MetricsLog, drop_after
from swe_rl.observe.plots import draw_plots
from swe_rl.observe.progress import Display
from swe_rl.observe.summary import Totals, build_summary, print_summary
from swe_rl.rollout.batch import RolloutBatch
from swe_rl.rollout.remote import OnProgress, RolloutCall
from swe_rl.run_folder import RunFolder, read_json, write_json
from swe_rl.tasks.load import load_tasks
from swe_rl.time_budget import TimeBudget
from swe_rl.trainer.checkpoint_folder import checkpoint_folder, latest_checkpoint
from swe_rl.trainer.errors import TrainingCollapsed
from swe_rl.trainer.guard.recovery import Recovery
from swe_rl.trainer.guard.watch import HELD_OUT, Alarm
from swe_rl.types import Task


def drive(config: Config) -> None:
    """Open or continue the run's folder, start all parts, train, and leave a summary."""
    started = time.monotonic()
    set_up_logging(config)
    check_inputs(config)
    run = RunFolder.open(config, admit=check_disk)
    end_recorded_processes(run.processes)  # what a SIGKILL of an earlier start of this run left
    config = run.bind(config)
    log = MetricsLog(run.metrics, config, run_name=run.name)
    display = Display(config, total_steps=config.num_rollout)
    display.say(f"{'continuing' if run.resumed else 'new run'} {run.path}")
    unfit = False
    try:
        with training_session(config, run) as session:
            try:
                budget = TimeBudget(config, started=started)
                Driver(config, run, session, log, display, budget).train()
            except SweRlError:
                session.engines.check()  # who talked to a dead engine knows only that nobody answers; its log knows more
                raise
    except (UsageError, DataError):  # a checkpoint of another model, a server that is none: nothing was begun
        unfit = True
        raise
    finally:
        display.close()
        log.close()
        if unfit:
            run.discard()
        run.close()


class Driver:
    """One run of the algorithm. `step` counts rollout steps, also those whose updates the guard undid.

    The weight version is the number of optimizer steps in the weights, plus `version_offset`: a policy that was restored gets a
    version of its own, and versions never go back.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        session: Session,
        log: MetricsLog,
        display: Display,
        budget: TimeBudget,
    ) -> None:
        self.config, self.run, self.log, self.display, self.budget = config, run, log, display, budget
        self.evaluation_seconds = 0.0  # what the last evaluation took
        self.engines, self.trainer, self.rollouts = session.engines, session.trainer, session.rollouts
        self.step = 0
        self.totals = Totals()
        self.recovery = Recovery(config, session.trainer)
        self.suspicious = False  # whether the guard found the last step odd
        self.version_offset = 0
        # The version that the engines serve: at first the weights that they loaded when this run started them. What engines
        # that were running already hold, nobody knows.
        self.pushed: int | None = None if config.engine_urls else 0
        self.pushed_after = 0  # the rollout step after which those weights were made
        self.sampled_after = 0  # the same of the weights that sample the rollout under way

    def train(self) -> None:
        """Evaluate, train until the steps or the seconds are used up, evaluate again, export."""
        self.display.say(f"training on {self.rollouts.info['data']}")
        self.display.say("\n".join([f"sandboxes: {self.rollouts.info['sandbox']}", *self.rollouts.info["notes"]]))
        self.resume()
        self.evaluate("before")
        if not self.finished():  # a start that had less time may have been further: those weights are trained on now
            self.run.evaluation("after").unlink(missing_ok=True)
        call = None if self.finished() else self.sample()
        while call is not None:
            started, sampled_after = time.monotonic(), self.sampled_after
            batch = self.collect(call)
            self.step += 1
            ahead = self.config.async_rollout and not self.finished()
            call = self.sample() if ahead else None
            metrics = self.update(batch)
            if alarm := self.judge(batch, metrics, sampled_after):
                self.roll_back(alarm, batch.data_state, call)
                call = None
            elif call is not None:
                self.wait(call)  # one step ahead and no more: weights change between rollouts, never inside them
            self.push_weights()
            self.totals.seconds_training += time.monotonic() - started
            if alarm is None and self.step % self.config.save_interval == 0 and not (call is None and self.finished()):
                self.save(batch.data_state)
            if self.config.eval_interval and self.step % self.config.eval_interval == 0 and not self.finished():
                self.evaluate(f"step-{self.step}")
            if call is None and not self.finished():
                call = self.sample()
            elif call is None and alarm is None:
                self.end_training(batch)
        self.evaluate("after")
        self.look_at_the_outcome()
        self.finish()
        if self.collapsed:
            last = self.totals.rollbacks[-1]
            raise TrainingCollapsed(
                f"collapse {len(self.totals.rollbacks)} at step {last['step']} ({last['reason']}) was one too many; "
                f"{self.run.hf} holds the weights from before it. Lower --lr (now {self.config.lr:g})"
            )

    def end_training(self, batch: RolloutBatch) -> None:
        """Save the last step's policy, unless the guard doubts it: no further step will tell."""
        if alarm := self.recovery.guard.doubt():
            self.roll_back(alarm, batch.data_state, None)
        else:
            self.save(batch.data_state)

    def finished(self) -> bool:
        if self.step >= self.config.num_rollout or self.collapsed:
            return True
        return self.budget.used_up(
            trained=self.totals.seconds_training, steps=self.step, evaluation=self.evaluation_seconds
        )

    @property
    def collapsed(self) -> bool:
        """Whether the policy collapsed once too often: the run ends with the weights from before."""
        return len(self.totals.rollbacks) > self.config.guard_max_rollbacks

    def resume(self) -> None:
        """Continue from `--load`, or from the run's newest checkpoint; the engines get the policy's weights."""
        newest = latest_checkpoint(self.run.checkpoints) if self.run.resumed else None
        source = newest or self.config.load
        if source:
            state = self.trainer.load(source)
            self.step = self.pushed_after = int(state["step"])
            self.totals = Totals.from_dict(state["totals"])
            self.rollouts.load_state_dict(state["data"])
            self.version_offset = int(state.get("version_offset", 0))
            if newest:
                self.budget.load_state_dict(state.get("budget", {}))
            else:
                self.totals.rollbacks = []  # those of another run
                self.budget.loaded(trained=self.totals.seconds_training, steps=self.step)
            self.recovery.resume(self.step, Path(source).resolve(), state.get("guard", {}), own=newest is not None)
            self.display.say(f"continuing after step {self.step} from {source}")
        drop_after(self.run.metrics, self.step)
        self.run.forget_evaluations_after(self.step)
        self.push_weights()

    def sample(self) -> RolloutCall:
        """Begin the next rollout with the weights that the engines have now."""
        self.sampled_after = self.pushed_after
        return self.rollouts.start(self.step)

    def collect(self, call: RolloutCall) -> RolloutBatch:
        """Wait for the step's attempts and write down how they went."""
        started = time.monotonic()
        with self.display.stage(f"attempts of step {self.step + 1}") as show:
            batch: RolloutBatch = self.result_of(call, show)
        self.totals.add(batch.counts)
        self.totals.spend("rollout", time.monotonic() - started)
        self.log.log("rollout", self.step + 1, batch.metrics)
        return batch

    def result_of(self, call: RolloutCall, show: OnProgress) -> Any:
        """The call's result, unless an engine died meanwhile: then some of its attempts failed for that."""
        result = call.result(show)
        self.engines.check()
        return result

    def wait(self, call: RolloutCall) -> None:
        """Let a rollout end that training has overtaken."""
        started = time.monotonic()
        with self.display.stage(f"attempts of step {self.step + 1}") as show:
            call.wait(show)
        self.totals.spend("rollout", time.monotonic() - started)

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """One training step on the batch; its metrics. The first log-prob difference proves that engine and trainer agree."""
        with self.display.stage("training"):
            metrics = self.trainer.train(self.step - 1, batch.samples)
        self.totals.optimizer_steps = self.trainer.optimizer_steps
        if self.totals.first_logprob_diff is None:
            self.totals.first_logprob_diff = metrics.get("train/mean_abs_logprob_diff")
        self.log.log("train", self.step, {name.removeprefix("train/"): value for name, value in metrics.items()})
        self.totals.spend("train", metrics["seconds/train"])
        rate, entropy = batch.metrics.get("resolve_rate", 0.0), metrics.get("train/entropy")
        self.display.step_done(
            self.step,
            f"resolved {100 * rate:.1f}% of {batch.metrics['attempts']:.0f} attempts, "
            f"{batch.metrics['groups_kept']:.0f}/{batch.metrics['groups']:.0f} groups with spread"
            + (f", entropy {entropy:.3f}" if entropy is not None else ""),
        )
        return metrics

    def judge(self, batch: RolloutBatch, metrics: dict[str, float], sampled_after: int) -> Alarm | None:
        """What the guard says of the weights after step `sampled_after`, which sampled the batch."""
        alarm = self.recovery.judge(self.step, batch.metrics, metrics, sampled_after=sampled_after)
        suspicion = None if alarm else self.recovery.guard.suspicion()
        if suspicion and not self.suspicious:
            self.display.say(f"guard: {suspicion}; that may be chance, the next steps will tell")
        self.suspicious = suspicion is not None
        self.log.log("guard", self.step, self.recovery.guard.metrics() | {"rollbacks": len(self.totals.rollbacks)})
        return alarm

    def look_at_the_outcome(self) -> None:
        """Go back where the trained policy is clearly worse than the first one was: a step's few tasks cannot show a collapse
        in the last steps, the held-out ones can. What it was worth then stays beside as `after-collapsed`."""
        if self.collapsed or self.outcome_undone:
            return
        before, after = (self.run.evaluation(label) for label in ("before", "after"))
        if not (before.exists() and after.exists()):
            return
        alarm = self.recovery.guard.judge_outcome(self.step, read_json(before), read_json(after))
        if alarm is None:
            return
        after.replace(self.run.evaluation("after-collapsed"))  # first: killed before the rest, the run evaluates again
        self.roll_back(alarm, self.rollouts.state_dict(), None)
        self.evaluate("after")

    @property
    def outcome_undone(self) -> bool:
        """Whether the run went back for what the evaluation after training had shown."""
        return bool(self.totals.rollbacks) and self.totals.rollbacks[-1]["reason"] == HELD_OUT

    def roll_back(self, alarm: Alarm, trained: dict[str, Any], ahead: RolloutCall | None) -> None:
        """Restore the last good policy under a new weight version; the data go on behind all that was sampled.

        trained: the data's position after the last step that was trained on. ahead: the rollout that the collapsed policy
        had begun; it is dropped.
        """
        if ahead is not None:
            ahead.abandon()
        position, version = self.rollouts.state_dict(), self.version
        event = self.recovery.restore(alarm)
        self.version_offset += version + 1 - self.version
        event |= {
            "dropped_groups": position["groups"] - trained["groups"],
            "weight_version": self.version,
        }
        self.totals.optimizer_steps = self.trainer.optimizer_steps
        self.totals.rollbacks.append(event)
        self.log.log("rollback", self.step, event)
        self.display.say(
            f"guard: {alarm}: back to the weights after step {event['back_to']} "
            f"(return {len(self.totals.rollbacks)}, at most {self.config.guard_max_rollbacks})"
        )
        self.push_weights()
        self.save(position, restored=True)

    @property
    def version(self) -> int:
        """The weight version of the trainer's weights."""
        return self.trainer.optimizer_steps + self.version_offset

    def push_weights(self) -> None:
        """Give the engines the trainer's weights, if they changed; from then on attempts carry their version."""
        version = self.version
        self.pushed_after = self.step
        if version == self.pushed:
            return
        started = time.monotonic()
        with self.display.stage("weights to engines"):
            self.trainer.push_weights(self.engines.urls, version)
            self.rollouts.set_weight_version(version)
        self.pushed = version
        self.totals.spend("push_weights", time.monotonic() - started)
        self.log.log("push", self.step, {"seconds": time.monotonic() - started, "weight_version": version})

    def save(self, data: dict[str, Any], *, restored: bool = False) -> None:
        """A checkpoint from which the next step continues exactly, with the data's position."""
        state = {
            "step": self.step,
            "totals": self.totals.to_dict(),
            "data": data,
            "seed": self.config.seed,
            "version_offset": self.version_offset,
            "guard": self.recovery.state_dict(),
            "budget": self.budget.state_dict(),
        }
        path = checkpoint_folder(self.run.checkpoints, self.step).resolve()
        self.trainer.save(path, state, spare=self.recovery.good.needed())
        self.recovery.saved(self.step, path, restored=restored)
        draw_plots(self.run.metrics, self.run.plots)

    def evaluate(self, label: str) -> None:
        """Held-out resolve rate of the engines' weights; a result that an earlier start stored is kept."""
        file = self.run.evaluation(label)
        if file.exists():
            self.evaluation_seconds = float(read_json(file).get("seconds", 0.0))
        if not self.config.eval_prompt_data or file.exists():
            return
        tasks, attempts = self.held_out
        started = time.monotonic()
        folder = f"{label}-restored" if label == "after" and self.outcome_undone else label
        result = self._evaluate(folder, tasks, attempts, self.config.eval_temperature)
        if self.config.eval_greedy:
            result["greedy"] = self._evaluate(f"{folder}-greedy", tasks, 1, 0.0)
        self.evaluation_seconds = time.monotonic() - started
        self.totals.spend("evaluation", self.evaluation_seconds)
        write_json(file, result | {"seconds": round(self.evaluation_seconds, 3)})
        self.log.log("eval", self.step, {k: result[k] for k in ("resolve_rate", "ci95", "n")})
        self.display.say(f"held-out {label}: {100 * result['resolve_rate']:.1f}% of {result['n']} attempts")

    @functools.cached_property
    def held_out(self) -> tuple[list[Task], int]:
        """Held-out tasks and attempts at each, read once; it says which rows are left out or rejected."""
        loaded = load_tasks(
            self.config.eval_prompt_data,
            only_certified=self.config.only_certified,
            with_scripts=True,
            image_template=self.config.swe_image_template,
        )
        if loaded.left_out or loaded.rejected:
            self.display.say(f"held-out tasks: {loaded.report()}")
        return choose(loaded.tasks, self.config)

    def _evaluate(self, label: str, tasks: list[Any], attempts: int, temperature: float) -> dict[str, Any]:
        folder = str(self.run.attempts / f"eval-{label}")
        call = self.rollouts.evaluate(
            tasks, attempts=attempts, temperature=temperature, label=label, attempts_dir=folder
        )
        with self.display.stage(f"evaluating {label}") as show:
            return rates(self.result_of(call, show), seed=self.config.seed)

    def finish(self) -> None:
        """Export the policy, draw the curves, write and print the summary: the mark of a finished run."""
        self.trainer.export_hf(self.run.hf)
        draw_plots(self.run.metrics, self.run.plots)
        evaluations = {
            name: read_json(self.run.evaluation(name))
            for name in ("before", "after")
            if self.run.evaluation(name).exists()
        }
        summary = build_summary(self.config, self.run, self.totals, evaluations, sandbox=self.rollouts.info["sandbox"])
        write_json(self.run.summary, summary)
        self.display.close()
        print_summary(summary, self.display.console)
