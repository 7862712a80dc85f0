"""The steps of the episodes with a camera in a folder of KinoDB files, for PyTorch."""

import argparse
import sys
from collections import Counter

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import glassfs


class Steps(Dataset):
    def __init__(self, folder: str, camera: str) -> None:
        self.data, self.camera = glassfs.open(folder), camera
        rows = list(self.data.episodes())
        having = [row for row in rows if camera in (row["cameras"] or ()) and row["state_dim"] and row["action_dim"]]
        if not having:
            found = Counter(name for row in rows for name in row["cameras"] or ())
            known = ", ".join(f"{name!r} in {count}" for name, count in found.most_common(20)) or "none"
            raise SystemExit(f"{folder}: no episode has camera {camera!r}, state and action; cameras: {known}")
        (sizes, _), *_ = Counter((row["state_dim"], row["action_dim"]) for row in having).most_common(1)
        used = [row for row in having if (row["state_dim"], row["action_dim"]) == sizes]
        if len(used) < len(rows):
            reason = f"they lack camera {camera!r}, or a state of {sizes[0]} and an action of {sizes[1]} values"
            print(f"{folder}: {len(rows) - len(used)} of {len(rows)} episodes are left out: {reason}", file=sys.stderr)
        self.paths = ["/".join(filter(None, (row.get("container"), f"episodes/{row['position']}"))) for row in used]
        self.ends = np.cumsum([row["num_frames"] for row in used])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        number = int(np.searchsorted(self.ends, index, side="right"))
        frame = index - int(self.ends[number - 1]) if number else index
        episode = self.data[self.paths[number]]
        image = episode[f"images/{self.camera}/{frame:06d}"].numpy(copy=True)
        return tuple(map(torch.from_numpy, (image, episode["state"][frame], episode["action"][frame])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="a folder of containers, or a container")
    parser.add_argument("camera", help="the name of a directory in 'images/'")
    parser.add_argument("workers", nargs="?", type=int, default=0, help="processes that load steps; default: 0")
    given = parser.parse_args()
    start = "spawn" if given.workers else None
    steps = Steps(given.folder, given.camera)
    loader = DataLoader(steps, 8, shuffle=True, num_workers=given.workers, multiprocessing_context=start)
    print(sum(len(state) for _, state, _ in loader), "steps")
