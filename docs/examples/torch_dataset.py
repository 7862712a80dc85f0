"""The steps of all episodes in a folder of containers, for PyTorch: ``python torch_dataset.py datasets/ front 8``."""

import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import glassfs


class Steps(Dataset):
    def __init__(self, folder: str, camera: str) -> None:
        self.data, self.camera = glassfs.open(folder), camera
        episodes = self.data.episodes()
        rows = zip(episodes["container"], episodes["position"], strict=True)
        self.paths = [f"{container}/episodes/{position}" for container, position in rows]
        self.ends = np.cumsum(episodes["num_frames"])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        number = int(np.searchsorted(self.ends, index, side="right"))
        frame = index - int(self.ends[number - 1]) if number else index
        episode = self.data[self.paths[number]]
        image = episode[f"images/{self.camera}/{frame:06d}"].numpy(copy=True)
        state, action = (torch.tensor(episode[name].numpy()[frame]) for name in ("state", "action"))
        return torch.from_numpy(image), state, action


if __name__ == "__main__":
    folder, camera, workers = sys.argv[1:]
    loader = DataLoader(
        Steps(folder, camera), batch_size=8, shuffle=True, num_workers=int(workers), multiprocessing_context="spawn",
    )
    print(sum(len(state) for _, state, _ in loader), "steps")
