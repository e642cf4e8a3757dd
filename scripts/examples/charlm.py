"""Data-parallel training of a small character transformer on CPUs: the job that scripts/quickstart runs and crashes.

A model of a quarter of a million parameters learns the source text of Python's own standard library, over gloo, with
DistributedDataParallel. It runs the same under supd, under torchrun, and alone as `python charlm.py --out FOLDER`.
After a crash it goes on from its last checkpoint, at whatever world size it is then started with: each step has the
same windows of text whatever that is, split anew among the ranks, so that the loss goes on as if nothing had changed.

How well it learns is measured on whole files that it never trains on, in nats a character, beside the order-0 entropy
of the very characters it is scored on: what a model would pay that knows how often each occurs, and nothing else.
"""

import argparse
import hashlib
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

try:
    from supd import beat, phase
except ImportError:  # under torchrun, or alone: there is nobody to tell

    def beat(step: int) -> None:
        """The step is done."""

    def phase(name: str) -> nullcontext[None]:
        """What is done in the `with` block may take longer than a step."""
        return nullcontext()


warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # from torch's import; not needed here

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

CHECKPOINT = "checkpoint.pt"
MARKER = "latest_step.txt"

# 0 stands for every byte that is not printable ASCII, a tab or a newline.
ALPHABET = b"\t\n" + bytes(range(32, 127))
SYMBOLS = len(ALPHABET) + 1
TO_SYMBOL = bytes(ALPHABET.find(byte) + 1 for byte in range(256))

SKIPPED_FOLDERS = ("site-packages", "dist-packages", "test", "encodings", "pydoc_data")  # others' code, tables
TRAINING_BYTES_MAX = 2_000_000
HELD_OUT_BYTES_MAX = 200_000
HELD_OUT_WINDOWS = 256

CONTEXT = 64  # characters the model sees at once
WIDTH = 96
HEADS = 4
LAYERS = 2
BATCH = 64  # windows a step, over all ranks
LEARNING_RATE = 3e-3
WARM_UP_STEPS = 20
SEED = 2718


# --- text --------------------------------------------------------------------------------------------------------


def library_files(root: Path) -> list[Path]:
    """Source files of the standard library below `root`, in an order that is stable and unlike any alphabet."""
    found = [*root.glob("*.py"), *root.glob("*/*.py")]
    own = [path for path in found if path.parent.name not in SKIPPED_FOLDERS]
    return sorted(own, key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())


def take(files: Iterator[Path], bytes_max: int) -> Tensor:
    """The text of the next files as symbols, whole files for as long as they fit and one cut at the end."""
    text = bytearray()
    for path in files:
        text += path.read_bytes().translate(TO_SYMBOL)
        if len(text) >= bytes_max:
            break
    return torch.frombuffer(text, dtype=torch.uint8)[:bytes_max]


def windows(text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """One window a start: its characters, and for each of them the one that follows."""
    picked = text[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    return picked[:, :-1], picked[:, 1:]


def order_0_entropy(symbols: Tensor) -> float:
    """Nats a character if each is drawn by how often it occurs in `symbols`."""
    share = torch.bincount(symbols.flatten(), minlength=SYMBOLS).double() / symbols.numel()
    return float(torch.special.entr(share).sum())


# --- model -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each normalised first and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.to_query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.from_heads = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """From (windows, characters, WIDTH) to the same."""
        split = self.to_query_key_value(self.attention_norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(heads.transpose(1, 2).flatten(-2))
        return x + self.feed_forward(x)


class CharacterModel(nn.Module):
    """Scores of the next character, at every place of a window."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.to_scores = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS))

    def forward(self, symbols: Tensor) -> Tensor:
        """From (windows, characters) to (windows, characters, SYMBOLS)."""
        x = self.symbol(symbols) + self.place(torch.arange(symbols.shape[1]))
        return self.to_scores(self.blocks(x))


# --- training ----------------------------------------------------------------------------------------------------


@dataclass
class Training:
    """What a checkpoint holds, and no more: `step` counts the optimizer steps that are in it."""

    model: CharacterModel
    optimizer: torch.optim.Optimizer
    draws: torch.Generator  # the same on every rank, so that a step has the same windows at any world size
    step: int = 0

    @classmethod
    def fresh(cls) -> "Training":
        """A model before its first step, the same on every rank."""
        torch.manual_seed(SEED)
        model = CharacterModel()
        return cls(model, torch.optim.AdamW(model.parameters(), LEARNING_RATE), torch.Generator().manual_seed(SEED))

    def save(self, folder: Path) -> None:
        """Write the checkpoint, then the marker that announces it; each appears whole or not at all."""
        scratch = folder / "unfinished"
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "draws": self.draws.get_state(),
        }
        with scratch.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(folder / CHECKPOINT)
        scratch.write_text(f"{self.step}\n")
        scratch.replace(folder / MARKER)

    @property
    def windows_seen(self) -> int:
        """By all ranks of all world sizes."""
        return self.step * BATCH

    def load(self, folder: Path) -> bool:
        """Go on from the checkpoint in `folder`; False if there is none."""
        try:
            state = torch.load(folder / CHECKPOINT, weights_only=True)
        except FileNotFoundError:
            return False
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.draws.set_state(state["draws"])
        self.step = state["step"]
        return True


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean nats a character."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Mean nats a character over all windows, each rank having scored its share. A collective: every rank calls it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = targets[rank::world_size]
    sums = torch.tensor([0.0, mine.numel()])
    sums[0] = loss_of(model, inputs[rank::world_size], mine) * mine.numel()
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def resume_line(step: int) -> str:
    """Where training goes on and, under supd, why it had to."""
    generation, reason = os.environ.get("SUPD_GENERATION"), os.environ.get("SUPD_RESTART_REASON")
    told = [f"generation {generation}"] if generation else []
    told += [f"reason: {reason}"] if reason else []
    return f"resuming from step {step}" + (f" ({', '.join(told)})" if told else "")


def tell(line: str) -> None:
    """Print in one write, so that ranks that share a terminal don't break into each other's lines."""
    print(f"{line}\n", end="", flush=True)


def train(folder: Path, steps: int, save_every: int) -> int:
    """Train up to `steps`, with a checkpoint and a held-out loss each `save_every`; returns the exit code."""
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def say(line: str) -> None:
        if rank == 0:
            tell(line)

    told_to_leave: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told_to_leave.append(number))

    files = iter(library_files(Path(os.__file__).parent))
    held_out, text = take(files, HELD_OUT_BYTES_MAX), take(files, TRAINING_BYTES_MAX)
    inputs, targets = windows(held_out, torch.linspace(0, len(held_out) - CONTEXT - 1, HELD_OUT_WINDOWS).long())
    entropy = order_0_entropy(targets)
    say(f"{len(text):,} characters of Python's standard library to learn, {len(held_out):,} from other files held out")

    training = Training.fresh()
    if training.load(folder):
        say(resume_line(training.step))
    replicas = DistributedDataParallel(training.model)

    def evaluate() -> None:
        with phase("eval"):
            loss = held_out_loss(training.model, inputs, targets)
        say(f"step {training.step} held-out loss {loss:.3f} nats/char (order-0 entropy {entropy:.3f})")

    say(f"{training.windows_seen:,} windows seen so far; the {BATCH} of each step are split among {world_size} ranks")
    evaluate()
    while training.step < steps:
        starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=training.draws)
        mine = starts[rank::world_size]
        # Gradients are averaged over ranks, whose shares differ by one where the windows can't be split evenly.
        loss = loss_of(replicas, *windows(text, mine)) * (len(mine) * world_size / BATCH)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, (training.step + 1) / WARM_UP_STEPS)
        training.optimizer.step()
        training.step += 1
        beat(training.step)

        # All ranks leave at the same step, or those that stay would wait for those that left.
        sums = torch.tensor([float(loss.detach()), float(len(told_to_leave))])
        dist.all_reduce(sums)
        must_leave = bool(sums[1])
        if training.step % 10 == 0:
            say(f"step {training.step} loss {float(sums[0]) / world_size:.3f}")
        is_due = training.step % save_every == 0 or training.step == steps
        if rank == 0 and (is_due or must_leave):
            with phase("checkpoint"):
                training.save(folder)
        if must_leave:
            say(f"told to leave: saved step {training.step}")
            return 128 + signal.SIGTERM
        if is_due:
            evaluate()
    say(f"finished: step {training.step}")
    return 0


def main() -> int:
    """Join the other ranks, train, leave them."""
    parser = argparse.ArgumentParser(description="Train a small character transformer on Python's standard library.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint and of its marker file")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps in all (default: %(default)s)")
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints (default: %(default)s)")
    options = parser.parse_args()
    if "${" in str(options.out):
        parser.error(f"--out {options.out}: the variable is not set; CHARLM_OUT=/some/folder supctl start …")
    options.out.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    for name, alone in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, alone)
    dist.init_process_group("gloo")
    tell(f"rank {dist.get_rank()} of {dist.get_world_size()} has met the others")
    try:
        code = train(options.out, options.steps, options.save_every)
    except RuntimeError as exc:
        lost = re.search(r"gloo/transport\S+ (.+?)\. This is", str(exc))
        if lost is None:
            raise
        # Not ours to explain: another rank has crashed, and its own last words say why.
        print(f"rank {dist.get_rank()} lost touch with another rank: {lost[1]}", file=sys.stderr)
        return 1
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    ended_with = main()
    # Not sys.exit: a thread of gloo may still hold the tensor of the last collective (DistributedDataParallel keeps its
    # process group beyond destroy_process_group), and one that frees it while Python shuts down aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended_with)
