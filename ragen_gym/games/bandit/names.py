"""The names of the arms and their splits: the lists of the RAGEN code, pairs of a steady and a risky trade."""

from __future__ import annotations

__all__ = ["SPLIT_OF_PAIR"]

_LISTS = {
    "train": """
        Teacher/Trader Nurse/StartupFounder Librarian/Investor Accountant/StockBroker Engineer/RealEstateAgent
        Pharmacist/Musician Clerk/Freelancer Technician/Youtuber Planner/Artist Postman/Pilot""",
    "validation": "Banker/VentureCapitalist Gardener/Cryptominer",
    "test": """
        Receptionist/Explorer Archivist/Filmmaker Bookkeeper/Consultant SocialWorker/Photographer Mechanic/GameDesigner
        Secretary/Entrepreneur Cashier/DataScientist CivilServant/StartupAccelerator""",
}

#: Split of each pair (low, high).
SPLIT_OF_PAIR: dict[tuple[str, str], str] = {
    (low, high): split
    for split, names in _LISTS.items()
    for low, _, high in (pair.partition("/") for pair in names.split())
}
