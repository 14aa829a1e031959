"""Sessions whose output loses its middle, and sessions with very many tests: what the plugin says of them arrives."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from pathlib import Path

from swe_rl.grading.pytest_sessions import MOST_BYTES, session_words, sessions_of
from swe_rl.types import Verdict
from tests.grading.lab import EVAL_SCRIPT, FIXED
from tests.grading.test_session_proof import HONEST, A, run_session, session

MIB = 1 << 20
# Before the tests and while they run, each more than the half of what is kept of the output.
PRINTS = f"    import sys\n    sys.stdout.write(('x' * 99 + chr(10)) * ({9 * MIB} // 100))\n    return max(numbers)\n"
FLOODED = FIXED.replace("    return max(numbers)\n", PRINTS)
SCRIPT = EVAL_SCRIPT.replace("python -m pytest", f"yes {'0' * 99} | head -c {9 * MIB}\npython -m pytest -s")


async def test_an_honest_patch_whose_passes_lie_in_the_lost_middle_is_resolved(grade, lab) -> None:
    result = await grade(replace(lab.script_task, eval_script=SCRIPT), lab.files({"calc.py": FLOODED}))
    assert result.detail["output_truncated"]
    assert (result.verdict, result.detail.get("problems")) == (Verdict.RESOLVED, None)


async def test_a_cheat_that_floods_the_output_behind_it_is_told_of(grade, lab) -> None:
    """What was said of it lies in the lost middle."""
    cheat = "    import _pytest.runner as r\n    r.CallInfo = type('CallInfo', (r.CallInfo,), {})\n    result = 0\n"
    assert FLOODED.count("    result = 0\n") == 1
    code = FLOODED.replace("    result = 0\n", cheat)
    result = await grade(replace(lab.script_task, eval_script=SCRIPT), lab.files({"calc.py": code}))
    assert result.detail["output_truncated"]
    assert result.verdict is Verdict.TAMPERED


def test_many_passes_take_little_room(tmp_path: Path) -> None:
    tests = "import pytest\n@pytest.mark.parametrize('n', range(1000))\ndef test_of_some_length(n): pass\n"
    (tmp_path / "test_many.py").write_text(tests)
    words = session_words()
    _, output = run_session(tmp_path, HONEST, words, "--deselect", "test_m.py", "test_many.py")
    said, rest = sessions_of(output, words)
    wanted = [f"test_many.py::test_of_some_length[{number}]" for number in range(1000)]
    assert said.of("passed") == wanted
    assert said.problems(0) == []
    assert len(output) - len(rest) < len("".join(wanted)) / 5
    # Each line is one that a pipe takes as a whole, so that no other process prints into it.
    assert max(len(line) for line in output.split("\n") if line[:24] in words) < 4096


def test_packed_sayings_have_a_bound_and_may_be_damaged() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(80 * MIB))).decode()
    output = f"\n{A} all passed {bomb}\n\n{A} all passed !\n\n{A} end 0\n"
    said, rest = sessions_of(output, [A])
    assert ([len(text) for text in said.sessions[0]], rest) == ([len("passed ") + MOST_BYTES, len("end 0")], "")


def test_a_file_of_tests_is_read_once_for_all_of_its_tests(tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(
        "import sys\n"
        "def note(event, args):\n"
        "    if event == 'open' and str(args[0]).endswith('test_read.py'): sys.__stderr__.write('opened\\n')\n"
        "sys.addaudithook(note)\n"
    )
    (tmp_path / "test_read.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(100))\ndef test_read(n): pass\n"
    )
    _, output = run_session(tmp_path, HONEST, [A], "-p", "counts", "test_read.py")
    assert len(sessions_of(output, [A])[0].of("passed")) > 100
    assert 1 <= output.count("opened\n") <= 5, output  # pytest reads it, too


def test_the_reading_before_the_code_under_test_is_imported_counts(tmp_path: Path) -> None:
    (tmp_path / "test_n.py").write_text("import later\ndef test_n(): later.two()\n")
    (tmp_path / "later.py").write_text(
        "import pytest\nopen('test_n.py', 'a').write('# xfail')\ndef two(): pytest.xfail('known')\n"
    )
    assert f"{A} xfailed test_n.py::test_n" in session(tmp_path, HONEST, [A], "test_n.py")[1]
