"""npu-smi's layouts, in texts of the shapes that real cards print, and mutations of them."""

from __future__ import annotations

import random

import pytest

from autotune.devices.cnmon import parse as parse_cnmon
from autotune.devices.npu_smi import NotUnderstoodError, parse, version_of

MB = 2**20
# A card of two chips: the second has no power of its own, and no space before a full memory's "/".
TABLE_HBM = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.3.rc1                 Version: 25.3.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 3     Ascend910           | OK            | 171.5       38                0    / 0             |
| 0     6                   | 0000:9D:00.0  | 42          0    / 0          57784/ 65536         |
+------------------------------------------------------------------------------------------------+
| 3     Ascend910           | Warning       | -           37                0    / 0             |
| 1     7                   | 0000:9F:00.0  | 100         0    / 0          2896 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 3       0                 | 4711          | python                   | 512                     |
+===========================+===============+====================================================+
"""
TABLE_DDR = """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                                   Version: 25.2.0                                       |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 2       310P3                 | OK              | NA           45                0     / 0             |
| 0       0                     | 0000:01:00.0    | 7            1529 / 44280                            |
+===============================+=================+======================================================+
"""  # noqa: E501
USAGES = """\
    NPU ID                         : 1
    Chip Count                     : 1

    DDR Capacity(MB)               : 0
    HBM Capacity(MB)               : 65536
    HBM Usage Rate(%)              : 25
    Aicore Usage Rate(%)           : 61
    Chip ID                        : 0
"""
COMMON = """\
        NPU ID                         : 0
        Chip Count                     : 1

        Chip ID                        : 0
        Memory Usage Rate(%)           : 44
        Aicore Usage Rate(%)           : 12
        Temperature(C)                 : 38

        Chip Name                      : MCU
        Temperature(C)                 : 36
        Power Dissipation(W)           : 13.3
"""
# The controller's name in small letters, and a chip of its own behind it.
COMMON_OF_TWO = """\
$ npu-smi info -t common -i 7
        NPU ID                         : 7
        Chip Count                     : 2

        Chip ID                        : 0
        Aicore Usage Rate(%)           : 70
        Temperature(C)                 : 66
        NPU Real-time Power(W)         : 331.1

        Chip ID                        : 1
        Aicore Usage Rate(%)           : 6
        Temperature(C)                 : 46
        NPU Real-time Power(W)         : 130.4

        Chip Name                      : mcu
        Temperature(C)                 : 58
        NPU Real-time Power(W)         : 13.4
"""
TEMPERATURES = """\
        NPU ID                         : 3
        Chip Count                     : 2

        NPU Temperature (C)            : 45
        Chip ID                        : 0

        NPU Temperature (C)            : 47
        Chip ID                        : 1

        LM75A_TE (C)                   : 36
        Chip Name                      : MCU
"""
# A card is one chip: its number and its name have a column each, and there is no chip's number.
TABLE_OF_CARDS = """\
+--------------------------------------------------------------------------------------------------+
| npu-smi 25.7.rc1                                 Version: 25.7.rc1                               |
+--------+------------------+---------------+------------------------------------------------------+
| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)  |
|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)          |
+========+==================+===============+======================================================+
| 0      | Ascend950PR      | OK            | 187.1       46                0     / 0              |
|        |                  | 0000:01:00.0  | 12          0    / 0          6620  / 131072         |
+========+==================+===============+======================================================+
| 6      | Ascend950PR      | Alarm         | NA          48                0     / 0              |
|        |                  | NA            | 100         0    / 0          6056  / 131072         |
+========+==================+===============+======================================================+
+----------------+---------------+-----------------------------------------------------------------+
| NPU ID         | Process id    | Process name        | Process memory(MB)                        |
+================+===============+=====================+===========================================+
| 0              | 2066378       | python              | 360                                       |
| 6              | 2066379       | python              | 361                                       |
+================+===============+=====================+===========================================+
"""
WATCH = """\
NpuID(Idx)  ChipId(Idx) Pwr(W)      Temp(C)     AI Core(%)  Ctrl Cpu(%) Memory(%)   Memory BW(%)
0           0           4.0         44          10          0           32          0
0           0           4.5         43          90          0           32          0
"""
WATCH_OF_CARDS = """\
NpuID(Idx)  Pwr(W)      Temp(C)     AI Core(%)  NPU Util(%)
0           195.7       56          40          60
"""
SAMPLES = (
    TABLE_HBM, TABLE_DDR, USAGES, COMMON, WATCH, TABLE_OF_CARDS, COMMON_OF_TWO, TEMPERATURES,
    WATCH_OF_CARDS,
)  # fmt: skip
CARD = """\
Card 0
    Utilization            :
        MLU Average        : 37 %
    Power                  :
        Usage              : 81 W
    Temperature            :
        Board              : 35 C
        Chip               : 41 C
    Physical Memory Usage  :
        Total              : 24576 MiB
        Used               : 1024 MiB
"""


def test_a_table_with_hbm() -> None:
    first, second = parse(TABLE_HBM)
    assert version_of(TABLE_HBM) == "25.3.rc1"
    assert (first.npu, first.chip, first.physical_id, first.name) == (3, 0, 6, "Ascend910")
    assert (first.health, second.health) == ("OK", "Warning")
    assert first.reading.power_w == 171.5 and second.reading.power_w is None
    assert first.reading.temperature_c == 38
    assert (first.reading.utilisation_ratio, second.reading.utilisation_ratio) == (0.42, 1.0)
    assert first.reading.memory_used_bytes == 57784 * MB
    assert first.reading.memory_total_bytes == 65536 * MB


def test_a_table_without_hbm_and_with_a_power_that_is_not_told() -> None:
    (chip,) = parse(TABLE_DDR)
    assert chip.reading.power_w is None
    assert (chip.reading.memory_used_bytes, chip.reading.memory_total_bytes) == (
        1529 * MB,
        44280 * MB,
    )


def test_keys_and_values() -> None:
    (chip,) = parse(USAGES)
    assert (chip.npu, chip.chip) == (1, 0)
    assert chip.reading.utilisation_ratio == 0.61
    assert chip.reading.memory_used_bytes == 16384 * MB
    (chip,) = parse(COMMON)
    assert (chip.reading.temperature_c, chip.reading.power_w) == (38, None)  # 13.3 W are the MCU's


def test_the_last_line_of_a_watch_counts() -> None:
    (chip,) = parse(WATCH)
    assert (chip.reading.power_w, chip.reading.utilisation_ratio) == (4.5, 0.9)


def test_a_table_whose_cards_are_one_chip_each() -> None:
    first, second = parse(TABLE_OF_CARDS)
    assert (first.npu, first.chip, first.name, second.npu) == (0, 0, "Ascend950PR", 6)
    assert (second.health, first.reading.power_w, second.reading.power_w) == ("Alarm", 187.1, None)
    assert (first.reading.utilisation_ratio, second.reading.utilisation_ratio) == (0.12, 1.0)
    assert first.reading.memory_used_bytes == 6620 * MB
    assert first.reading.memory_total_bytes == 131072 * MB
    (chip,) = parse(WATCH_OF_CARDS)
    assert (chip.npu, chip.chip, chip.reading.utilisation_ratio) == (0, 0, 0.4)


def test_figures_of_several_chips_of_a_card_and_not_of_its_controller() -> None:
    first, second = (chip.reading for chip in parse(COMMON_OF_TWO))
    assert (first.temperature_c, first.power_w, first.utilisation_ratio) == (66, 331.1, 0.7)
    assert (second.temperature_c, second.power_w, second.utilisation_ratio) == (46, 130.4, 0.06)
    assert [c.reading.temperature_c for c in parse(TEMPERATURES)] == [45, 47]


def test_colours_are_no_part_of_a_word() -> None:
    coloured = TABLE_HBM.replace("| OK  ", "| \x1b[32mOK\x1b[0m  ")
    assert coloured != TABLE_HBM and parse(coloured) == parse(TABLE_HBM)


@pytest.mark.parametrize(
    "text",
    [
        "", "npu-smi: command not found", "| NPU Name |", "x" * 2_000_000, "\n" * 1_000_000,
        "| NPU Name |\n| 0 a | OK | 1 2 |\n| 0 | a | " + "9" * 900_000, "NpuID(Idx)" * 99_000,
        "(" * 1_000_000,
    ],
    ids=lambda text: f"{len(text)} of {text[:9]!r}",
)  # fmt: skip
def test_anything_else_is_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstoodError, match=r"no chip in it|characters"):
        parse(text)


def test_ten_thousand_mutations_are_read_or_not_understood() -> None:
    rng = random.Random(0)
    understood = 0
    for _ in range(10_000):
        try:
            chips = parse(_mutated(rng.choice(SAMPLES), rng))
        except NotUnderstoodError:
            continue
        understood += 1
        for chip in chips:
            share = chip.reading.utilisation_ratio
            assert share is None or 0 <= share <= 1
            assert chip.reading.memory_used_bytes is None or chip.reading.memory_used_bytes >= 0
    assert understood > 1000  # the mutations are not all ruins


def _mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(6):
            case 0:
                text = text[:at] + text[at + rng.randint(1, 20) :]
            case 1:
                text = text[:at] + rng.choice("|:/-+ \n\0é９NA%1e9") + text[at:]
            case 2:
                lines = text.splitlines(keepends=True)
                rng.shuffle(lines)
                text = "".join(lines)
            case 3:
                text = text.replace(rng.choice("0123456789"), rng.choice(["", "9" * 40, "NaN"]))
            case 4:
                text = text[:at]
            case _:
                text = text.replace("  ", rng.choice([" ", "\t", "   "]))
    return text


def test_a_cambricon_card() -> None:
    reading = parse_cnmon(CARD)
    assert (reading.utilisation_ratio, reading.power_w, reading.temperature_c) == (0.37, 81, 41)
    assert (reading.memory_used_bytes, reading.memory_total_bytes) == (1024 * MB, 24576 * MB)
    with pytest.raises(ValueError, match="of a card"):
        parse_cnmon("cnmon: not found")


def test_mutations_of_a_cambricon_card_are_read_or_not_understood() -> None:
    rng = random.Random(0)
    understood = 0
    for _ in range(3000):
        try:
            reading = parse_cnmon(_mutated(CARD.replace("37", "9" * rng.randint(1, 500)), rng))
        except ValueError:
            continue
        understood += 1
        assert reading.utilisation_ratio is None or 0 <= reading.utilisation_ratio <= 1
    assert understood > 1000
