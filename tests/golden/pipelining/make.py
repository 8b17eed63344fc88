"""Writes schedules of torch.distributed.pipelining (torch 2.13) for 4 ranks and 8 microbatches into this folder, in the
CSV of that library. They are the reference for our schedules. All but DualPipeV contain the sends and receives that
the library adds.

  .venv/bin/python tests/golden/pipelining/make.py
"""
import os
import types

from torch.distributed.pipelining import schedules

RANKS, STAGES, MICROBATCHES = 4, 8, 8


def stage(index):
    return types.SimpleNamespace(
        stage_index=index, num_stages=STAGES, group_rank=0, group_size=RANKS, device="cpu", is_first=index == 0,
        is_last=index == STAGES - 1, has_backward=True, submod=None, group=None, stage_index_to_group_rank={})


def write(name, kind, v_shaped, lower):
    owned = [0, STAGES - 1] if v_shaped else [0, RANKS]
    rows = kind([stage(index) for index in owned], MICROBATCHES, loss_fn=lambda *_: 0).pipeline_order
    if lower:
        rows = {rank: [action for action in row if action is not None] for rank, row in rows.items()}
        owner = (lambda s: min(s, STAGES - 1 - s)) if v_shaped else (lambda s: s % RANKS)
        rows = schedules._add_send_recv(rows, stage_to_rank=owner, num_stages=STAGES)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".csv"), "w", encoding="utf-8") as file:
        for rank in range(RANKS):
            file.write(",".join("" if action is None else str(action) for action in rows[rank]) + "\n")


write("interleaved_1f1b", schedules.ScheduleInterleaved1F1B, False, True)
write("interleaved_zero_bubble", schedules.ScheduleInterleavedZeroBubble, False, True)
write("zb_v", schedules.ScheduleZBVZeroBubble, True, True)
write("dual_pipe_v", schedules.ScheduleDualPipeV, True, False)
