"""Which trials are stopped early: asynchronous successive halving, every method among its own trials."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from xdnas.search.runfolder import read_trial, read_trials, trial_folder, write_status


class Halving(FIFOScheduler):
    """ASHA (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning") within every method.

    After half of the epochs (a warm-up takes up to a quarter) a trial goes on if it is in the better half of those of
    its method that came as far before it, those that ended before the search was resumed among them. Which ones come
    first depends on timing. A stopped trial is marked in its folder.
    """

    def __init__(self, folder: Path, epochs: int, early_stopping: bool, lines: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.folder, self.epochs, self.early_stopping, self.lines = folder, epochs, early_stopping, lines
        self.halvings: dict[str, ASHAScheduler] = {}

    def _of(self, trial: Trial) -> ASHAScheduler:
        method = trial.config["trial"].rsplit("-", 1)[0]
        if method not in self.halvings:
            first = max(1, self.epochs // 2) if self.early_stopping else self.epochs
            self.halvings[method] = ASHAScheduler(
                time_attr="epoch", metric="valid", mode="min", max_t=self.epochs, grace_period=first, reduction_factor=2
            )
            self._replay(method)
        return self.halvings[method]

    def _replay(self, method: str) -> None:
        """Tell a halving what the trials reported that have ended already."""
        for ended in read_trials(self.folder, method):
            if ended.status:
                known: Any = SimpleNamespace(trial_id=f"ended {ended.name}")
                self.halvings[method].on_trial_add(None, known)  # type: ignore[arg-type]
                for row in ended.epochs:
                    self.halvings[method].on_trial_result(None, known, row)  # type: ignore[arg-type]

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Take a trial to its method's halving."""
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decide after an epoch, and mark a trial that is stopped."""
        decision: str = self._of(trial).on_trial_result(tune_controller, trial, result)
        own = trial_folder(self.folder, trial.config["trial"])
        if decision == TrialScheduler.STOP and not (own / "result.json").is_file():
            write_status(own, "stopped")
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Tell its method's halving, and print a line if wanted."""
        self._of(trial).on_trial_complete(tune_controller, trial, result)
        if self.lines:
            print_line(trial_folder(self.folder, trial.config["trial"]))

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Forget a trial that never ran."""
        self._of(trial).on_trial_remove(tune_controller, trial)


def print_line(own: Path) -> None:
    """One line about a trial that has ended."""
    trial = read_trial(own)
    settings = ", ".join(f"{name} {value}" for name, value in trial.settings.items())
    course = f", validation {trial.valid:.4g}, {trial.seconds:.0f} s" if trial.epochs else ""
    print(f"{trial.name}: {trial.status or 'failed'} after {len(trial.epochs)} epochs{course} ({settings})", flush=True)
