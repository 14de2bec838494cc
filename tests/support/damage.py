"""What breaks each invariant of the format: one file of a lakehouse on a disk, changed behind the API's back.

``BROKEN`` has for each way the invariant, what does it to the newest version, and what a check of that version finds.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.surgery import ABSENT, WRONG, Columns, Surgery, set_system_row
from trinitylake_core import spec
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.locations import node_path, root_path

EXTENSIONS = (
    spec.NAMESPACES,
    spec.TABLES,
    spec.VIEWS,
    spec.HEIGHT,
    spec.SUBTREE_KEYS,
    spec.SUBTREE_MESSAGES,
    spec.CHILD_KEYS,
    spec.CHILD_MESSAGES,
)
Break = Callable[[Surgery, int], object]
ORDER = 4


def table_key(namespace: str, name: str) -> str:
    return "C===" + namespace.ljust(8) + name.ljust(8)


def quick(node: object) -> bool:
    return bool(getattr(node, "buffer").keys) and not getattr(node, "is_leaf")  # noqa: B009


def damage_a_checksum(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.leaf(version), WRONG):
        pass


def take_a_checksum_away(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.leaf(version), ABSENT):
        pass


def change_content_under_its_checksum(surgery: Surgery, version: int) -> None:
    leaf = surgery.leaf(version)
    data = surgery.read(leaf)
    surgery.write(leaf, data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])


def cut_a_node_short(surgery: Surgery, version: int) -> None:
    leaf = surgery.leaf(version)
    surgery.write(leaf, surgery.read(leaf)[:-20])


def write_garbage_over_a_node(surgery: Surgery, version: int) -> None:
    surgery.write(surgery.inner(version), b"not Arrow at all")


def empty_a_node_file(surgery: Surgery, version: int) -> None:
    surgery.write(surgery.leaf(version), b"")


def take_a_column_away(surgery: Surgery, version: int) -> None:
    leaf = surgery.leaf(version)
    columns = surgery.columns(leaf)
    del columns[spec.PNODE]
    surgery.write_columns(leaf, columns)


def take_the_keys_away(surgery: Surgery, version: int) -> None:
    leaf = surgery.leaf(version)
    columns = surgery.columns(leaf)
    del columns[spec.KEY]
    surgery.write_columns(leaf, columns, ABSENT)


def count_more_keys_than_there_are(surgery: Surgery, version: int) -> None:
    leaf = surgery.find(version, lambda node: node.is_leaf and len(node.keys) < ORDER - 1)
    surgery.system_row(leaf, spec.N_KEYS, "3")


def count_absurdly_many_keys(surgery: Surgery, version: int) -> None:
    surgery.system_row(surgery.leaf(version), spec.N_KEYS, "9" * 18)


def add_a_row_to_a_key_table(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.leaf(version)) as columns:
        for column in columns.values():
            column.append(None)


def take_a_row_off_a_key_table(surgery: Surgery, version: int) -> None:
    leaf = surgery.find(version, lambda node: node.is_leaf and len(node.keys) < ORDER - 1)
    with surgery.raw(leaf) as columns:
        for column in columns.values():
            column.pop()


def fill_row_zero(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.leaf(version)) as columns:
        columns[spec.PVALUE][columns[spec.KEY].index(None)] = "a value"


def fill_an_unused_row(surgery: Surgery, version: int) -> None:
    leaf = surgery.find(version, lambda node: node.is_leaf and len(node.keys) < ORDER - 1)
    with surgery.raw(leaf) as columns:
        columns[spec.PVALUE][-1] = "a value"


def set_a_child_in_an_unused_row(surgery: Surgery, version: int) -> None:
    leaf = surgery.find(version, lambda node: node.is_leaf and len(node.keys) < ORDER - 1)
    with surgery.raw(leaf) as columns:
        columns[spec.PNODE][-1] = node_path()


def swap_two_keys(surgery: Surgery, version: int) -> None:
    with surgery.node(surgery.find(version, lambda node: node.is_leaf and len(node.keys) > 1)) as node:
        node.keys.reverse()


def repeat_a_key(surgery: Surgery, version: int) -> None:
    leaf = surgery.find(version, lambda node: node.is_leaf and len(node.keys) > 1 and node.keys[0][0] == "C")
    with surgery.node(leaf) as node:
        node.keys[1] = node.keys[0]


def move_a_key_over_the_pivot(surgery: Surgery, version: int) -> None:
    first = surgery.find(version, lambda node: node.is_leaf and node.keys[0].startswith("C==="))
    with surgery.node(first) as node:
        node.keys[-1] = table_key("ns2", "zzz")


def move_a_key_onto_the_pivot(surgery: Surgery, version: int) -> None:
    first = surgery.find(version, lambda node: node.is_leaf and node.keys[0].startswith("C==="))
    parent = surgery.decode(surgery.path_to(version, first)[-2])
    index = parent.children.index(first)
    with surgery.node(first) as node:
        node.keys[-1] = parent.keys[index] if index < len(parent.keys) else parent.keys[-1]
        node.keys.sort()


def move_a_message_over_the_pivot(surgery: Surgery, version: int) -> None:
    with surgery.node(surgery.find(version, quick)) as node:
        node.buffer.keys[0] = table_key("ns2", "zzzz") if node.keys[0] < table_key("ns2", "") else "C===a"


def forget_who_sent_a_message(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.find(version, quick)) as columns:
        columns[spec.TXN][-1] = None


def give_a_message_a_child(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.find(version, quick)) as columns:
        columns[spec.PNODE][-1] = node_path()


def empty_the_last_message(surgery: Surgery, version: int) -> None:
    path = surgery.find(version, lambda node: len(node.buffer) > 1)
    with surgery.raw(path) as columns:
        columns[spec.KEY][-1] = columns[spec.PVALUE][-1] = None


def overfill_a_leaf(surgery: Surgery, version: int) -> None:
    leaf = surgery.find(version, lambda node: node.is_leaf and node.keys[0].startswith("C==="))
    with surgery.node(leaf) as node:
        key, value = node.keys[0], node.values[0]
        more = [(key.rstrip() + character).ljust(len(key)) for character in "abcd"]
        node.keys[1:1], node.values[1:1] = more, [value] * 4
    surgery.recount(version)


def empty_a_leaf(surgery: Surgery, version: int) -> None:
    leaf = surgery.find(version, lambda node: node.is_leaf and node.keys[0].startswith("C==="))
    with surgery.node(leaf) as node:
        node.keys, node.values = [], []
    surgery.recount(version)


def leave_the_root_one_child(surgery: Surgery, version: int) -> None:
    with surgery.node(root_path(version)) as node:
        node.buffer.keys, node.buffer.values, node.buffer.txns = [], [], []
        node.keys, node.values, node.children = [], [], node.children[:1]
    surgery.recount(version)


def forget_a_child(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.inner(version)) as columns:
        columns[spec.PNODE][columns[spec.KEY].index(None)] = None


def give_a_leaf_a_child(surgery: Surgery, version: int) -> None:
    with surgery.raw(surgery.leaf(version)) as columns:
        columns[spec.PNODE][columns[spec.KEY].index(None)] = node_path()


def misstate_a_height(surgery: Surgery, version: int) -> None:
    surgery.system_row(surgery.leaf(version), spec.HEIGHT, "1")


def misstate_the_height_of_the_root(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.HEIGHT, "9")


def hang_a_leaf_one_level_too_high(surgery: Surgery, version: int) -> None:
    """The heights are not told, as a writer may; the depth shows all the same."""
    for path, _ in surgery.tree(version):
        surgery.strip(path, spec.HEIGHT)
    *_, above, parent, leaf = surgery.path_to(version, surgery.tree(version)[-1][0])
    with surgery.node(above) as node:
        node.height = None
        node.children[node.children.index(parent)] = leaf
    for path, _ in surgery.tree(version):
        surgery.strip(path, *EXTENSIONS)


def miscount(row: str, where: str) -> Break:
    def miscounted(surgery: Surgery, version: int) -> None:
        path = {"root": root_path(version), "inner": surgery.inner(version), "leaf": surgery.leaf(version)}[where]
        with surgery.raw(path) as columns:
            old = columns[spec.PVALUE][columns[spec.KEY].index(row)]
            assert old is not None
            first, comma, rest = old.partition(",")
            set_system_row(columns, row, f"{int(first) + 1}{comma}{rest}")

    miscounted.__name__ = f"miscount_{row}_in_{where}"
    return miscounted


def count_too_few_children(surgery: Surgery, version: int) -> None:
    surgery.system_row(surgery.inner(version), spec.CHILD_KEYS, "1")


def write_words_for_a_count(surgery: Surgery, version: int) -> None:
    surgery.system_row(surgery.leaf(version), spec.SUBTREE_KEYS, "many")


def lose_a_leaf(surgery: Surgery, version: int) -> None:
    surgery.remove(surgery.leaf(version))


def lose_an_inner_node(surgery: Surgery, version: int) -> None:
    surgery.remove(surgery.inner(version))


def point(to: str) -> Break:
    def pointing(surgery: Surgery, version: int) -> None:
        with surgery.node(surgery.inner(version)) as node:
            node.children[0] = to

    pointing.__name__ = f"point_to_{to}"
    return pointing


def point_to_the_root(surgery: Surgery, version: int) -> None:
    with surgery.node(surgery.inner(version)) as node:
        node.children[-1] = root_path(version)


def point_in_a_circle(surgery: Surgery, version: int) -> None:
    """The heights are not told, so only the walk itself notices."""
    path = surgery.inner(version)
    with surgery.node(path) as node:
        node.children[-1] = path
    for each in {path, root_path(version)}:
        surgery.strip(each, *EXTENSIONS)


def point_to_one_child_twice(surgery: Surgery, version: int) -> None:
    with surgery.node(surgery.inner(version)) as node:
        node.children[-1] = node.children[0]


def point_to_a_child_of_another(surgery: Surgery, version: int) -> None:
    one, two = [path for path, node in surgery.tree(version) if node.height == 1][:2]
    stolen = surgery.decode(one).children[0]
    with surgery.node(two) as node:
        node.children[0] = stolen


def hang_nodes_deeper_than_any_tree(surgery: Surgery, version: int) -> None:
    path = surgery.leaf(version)
    for _ in range(1500):
        path, below = node_path(), path
        columns: Columns = {
            spec.KEY: [spec.N_KEYS, None, "C===ns0     m       ", None, None],
            spec.PVALUE: ["1", None, "v", None, None],
            spec.PNODE: [None, below, node_path(), None, None],
            spec.TXN: [None] * 5,
        }
        surgery.write_columns(path, columns)
    with surgery.node(root_path(version)) as node:
        node.height = None
        node.children[0] = path


def change_a_key(new: Callable[[str], str]) -> Break:
    def changed(surgery: Surgery, version: int) -> None:
        leaf = surgery.find(version, lambda node: node.is_leaf and len(node.keys) > 1 and node.keys[0][0] == "C")
        with surgery.node(leaf) as node:
            node.keys[0] = new(node.keys[0])

    changed.__name__ = "change_a_key"
    return changed


def lead_a_value_outside(surgery: Surgery, version: int) -> None:
    with surgery.node(surgery.leaf(version)) as node:
        node.values[0] = "../../etc/passwd"


def lose_a_namespace(surgery: Surgery, version: int) -> None:
    gone = "B===" + "ns1".ljust(8)
    for path, found in surgery.tree(version):
        if gone in (*found.keys, *found.buffer.keys):
            with surgery.node(path) as node:
                for column in (node.keys, node.buffer.keys):
                    column[:] = [key.replace("ns1 ", "ns11") for key in column]


def misstate_the_version(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.VERSION, str(version + 1))


def forget_the_version(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.VERSION, None)


def forget_the_definition(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.LAKEHOUSE_DEF, None)


def definition_of(surgery: Surgery, version: int) -> str:
    return surgery.decode(root_path(version)).system[spec.LAKEHOUSE_DEF]


def lose_the_definition(surgery: Surgery, version: int) -> None:
    surgery.remove(definition_of(surgery, version))


def garble_the_definition(surgery: Surgery, version: int) -> None:
    surgery.write(definition_of(surgery, version), b"\xff\xff garbage")


def empty_the_definition(surgery: Surgery, version: int) -> None:
    surgery.write(definition_of(surgery, version), b"")


def change_the_definition_behind_its_copy(surgery: Surgery, version: int) -> None:
    surgery.write(definition_of(surgery, version), encode(LakehouseDef(id="another")))


def raise_the_major_version(surgery: Surgery, version: int) -> None:
    surgery.write(definition_of(surgery, version), encode(LakehouseDef(id="x", major_version=1)))


def lead_the_definition_outside(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.LAKEHOUSE_DEF, "../def.binpb")


def misstate_the_previous_root(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.PREVIOUS_ROOT, root_path(version - 2))


def name_another_transaction(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.PREVIOUS_TXN, "another")


def forget_the_previous_root(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.PREVIOUS_ROOT, None)


def lose_the_previous_root(surgery: Surgery, version: int) -> None:
    surgery.remove(root_path(version - 1))


def garble_the_previous_root(surgery: Surgery, version: int) -> None:
    surgery.write(root_path(version - 1), b"garbage")


def turn_the_clock_back(surgery: Surgery, version: int) -> None:
    before = surgery.decode(root_path(version - 1)).system[spec.CREATED_AT_MILLIS]
    surgery.system_row(root_path(version), spec.CREATED_AT_MILLIS, before)


def write_words_for_a_time(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version), spec.CREATED_AT_MILLIS, "yesterday")


def lower_the_oldest_version(surgery: Surgery, version: int) -> None:
    surgery.system_row(root_path(version - 1), spec.OLDEST_VERSION, "1")


def expire_a_version_by_itself(surgery: Surgery, version: int) -> None:
    with surgery.node(root_path(version)) as node:
        node.system[spec.OLDEST_VERSION] = str(version + 1)


def lose_the_definition_of_an_object(surgery: Surgery, version: int) -> None:
    surgery.remove(surgery.decode(surgery.leaf(version)).values[0])


def garble_the_definition_of_an_object(surgery: Surgery, version: int) -> None:
    surgery.write(surgery.decode(surgery.leaf(version)).values[0], b"\xff\xff garbage")


def set_the_boundary(text: bytes) -> Break:
    def bounded(surgery: Surgery, version: int) -> None:
        surgery.write(spec.BOUNDARY_FILE, text.replace(b"newest", str(version).encode()))
        surgery.remove(root_path(3))

    bounded.__name__ = f"set_the_boundary_to_{text.decode()}"
    return bounded


def set_the_row(name: str, value: str) -> Break:
    """Return what makes a row of the root say something else."""

    def broken(surgery: Surgery, version: int) -> None:
        surgery.system_row(root_path(version), name, value)

    return broken


def lower_a_fence(name: str) -> Break:
    """Return what makes the version before say that more is void."""

    def broken(surgery: Surgery, version: int) -> None:
        surgery.system_row(root_path(version - 1), name, "8")
        surgery.system_row(root_path(version), name, "7")

    broken.__name__ = f"lower_{name}"
    return broken


BROKEN: list[tuple[str, Break, set[str]]] = [
    ("I1", damage_a_checksum, {"I1"}),
    ("I1", take_a_checksum_away, {"I1"}),
    ("I1", change_content_under_its_checksum, {"I1"}),
    ("I1", cut_a_node_short, {"I1"}),
    ("I1", write_garbage_over_a_node, {"I1"}),
    ("I1", empty_a_node_file, {"I1"}),
    ("I1", take_a_column_away, {"I1"}),
    ("I1", take_the_keys_away, {"I1"}),
    ("I2", count_more_keys_than_there_are, {"I2"}),
    ("I2", count_absurdly_many_keys, {"I2"}),
    ("I2", add_a_row_to_a_key_table, {"I2"}),
    ("I2", take_a_row_off_a_key_table, {"I2"}),
    ("I2", fill_row_zero, {"I2"}),
    ("I2", fill_an_unused_row, {"I2"}),
    ("I2", set_a_child_in_an_unused_row, {"I2"}),
    ("I3", swap_two_keys, {"I3"}),
    ("I3", repeat_a_key, {"I3"}),
    ("I4", move_a_key_over_the_pivot, {"I4"}),
    ("I4", move_a_key_onto_the_pivot, {"I4"}),
    ("I5", move_a_message_over_the_pivot, {"I5"}),
    ("I5", forget_who_sent_a_message, {"I5"}),
    ("I5", give_a_message_a_child, {"I5"}),
    ("I5", empty_the_last_message, {"I5"}),
    ("I6", overfill_a_leaf, {"I2", "I6"}),  # a table that holds more than N - 1 keys has more than N rows
    ("I6", empty_a_leaf, {"I6"}),
    ("I6", leave_the_root_one_child, {"I6"}),
    ("I7", forget_a_child, {"I7"}),
    ("I7", give_a_leaf_a_child, {"I7"}),
    ("I8", misstate_a_height, {"I8"}),
    ("I8", misstate_the_height_of_the_root, {"I8"}),
    ("I8", hang_a_leaf_one_level_too_high, {"I8"}),
    ("I9", miscount(spec.SUBTREE_KEYS, "leaf"), {"I9"}),
    ("I9", miscount(spec.SUBTREE_MESSAGES, "leaf"), {"I9"}),
    ("I9", miscount(spec.SUBTREE_KEYS, "root"), {"I9"}),
    ("I9", miscount(spec.SUBTREE_MESSAGES, "root"), {"I9"}),
    ("I9", miscount(spec.CHILD_KEYS, "inner"), {"I9"}),
    ("I9", miscount(spec.CHILD_MESSAGES, "inner"), {"I9"}),
    ("I9", count_too_few_children, {"I9"}),
    ("I9", write_words_for_a_count, {"I9"}),
    ("I10", lose_a_leaf, {"I10"}),
    ("I10", lose_an_inner_node, {"I10"}),
    ("I10", point("../outside.ipc"), {"I10"}),
    ("I10", point("/etc/passwd"), {"I10"}),
    ("I10", point("s3://bucket/node.ipc"), {"I10"}),
    ("I10", point("a//b"), {"I10"}),
    ("I10", point("a/./b"), {"I10"}),
    ("I10", point("file:/x"), {"I10"}),
    ("I10", point_to_the_root, {"I10"}),
    ("I10", point_in_a_circle, {"I10"}),
    ("I10", point_to_one_child_twice, {"I10"}),
    ("I10", point_to_a_child_of_another, {"I10"}),
    ("I11", change_a_key(lambda key: key[:-1]), {"I11"}),
    ("I11", change_a_key(lambda key: key[:-1] + "\x01"), {"I11"}),
    ("I11", change_a_key(lambda key: key[:-3] + " x "), {"I11"}),
    ("I11", lead_a_value_outside, {"I11"}),
    ("I12", lose_a_namespace, {"I12"}),
    ("I13", misstate_the_version, {"I13"}),
    ("I13", forget_the_version, {"I13"}),
    ("I13", forget_the_definition, {"I13"}),
    ("I13", lose_the_definition, {"I13"}),
    ("I13", garble_the_definition, {"I13"}),
    ("I13", empty_the_definition, {"I13"}),
    ("I13", change_the_definition_behind_its_copy, {"I13"}),
    ("I13", raise_the_major_version, {"I13"}),
    ("I13", lead_the_definition_outside, {"I13"}),
    ("I14", misstate_the_previous_root, {"I14"}),
    ("I14", name_another_transaction, {"I14"}),
    ("I14", forget_the_previous_root, {"I14"}),
    ("I14", lose_the_previous_root, {"I14"}),
    ("I14", garble_the_previous_root, {"I14"}),
    ("I14", turn_the_clock_back, {"I14"}),
    ("I14", write_words_for_a_time, {"I14"}),
    ("I14", lower_the_oldest_version, {"I14"}),
    ("I14", expire_a_version_by_itself, {"I14"}),
    ("I14", set_the_row(spec.VOID_BEFORE_MILLIS, "x"), {"I14"}),
    ("I14", set_the_row(spec.TABLES_VOID_BEFORE_MILLIS, "x"), {"I14"}),
    ("I14", lower_a_fence(spec.VOID_BEFORE_MILLIS), {"I14"}),
    ("I14", lower_a_fence(spec.TABLES_VOID_BEFORE_MILLIS), {"I14"}),
    ("I14", set_the_row(spec.OLDEST_VERSION, str(1 << 40)), {"I14"}),
    ("I9", set_the_row(spec.NAMESPACES, "-3"), {"I9"}),
    ("I9", set_the_row(spec.VIEWS, ""), {"I9"}),
    ("I15", lose_the_definition_of_an_object, {"I15"}),
    ("I15", garble_the_definition_of_an_object, {"I15"}),
    ("I16", set_the_boundary(b"9999"), {"I16"}),
    ("I16", set_the_boundary(b"3"), {"I16"}),
]
