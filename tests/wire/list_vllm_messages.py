#!/usr/bin/env python3
"""Lists the messages of the package smg-grpc-proto, field by field.

    list_vllm_messages.py --work FOLDER                   prints the list
    list_vllm_messages.py --work FOLDER --compare FILE    compares it with FILE

The list has the service VllmEngine and what it uses: a line for each method,
field and value of an enum. vllm_messages_test.cc compares our own messages with
the list that is committed, and this program the list with the package.

The package is fetched from the Python package index, in a fixed version. Exits
with 77, and says so, if the index cannot be reached; with 1 if lists differ."""

import argparse
import difflib
import pathlib
import subprocess
import sys
import venv

SKIPPED = 77
VERSION = "0.4.28"

LISTER = '''
from google.protobuf import descriptor
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

types = {getattr(descriptor.FieldDescriptor, name): name[5:].lower()
         for name in dir(descriptor.FieldDescriptor)
         if name.startswith("TYPE_")}
lines, seen = set(), set()

def add_enum(enum):
    for value in enum.values:
        lines.add(f"enum {enum.full_name} {value.number} {value.name}")

def add_message(message):
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    lines.add(f"message {message.full_name}")
    for field in message.fields:
        if field.is_repeated:
            label = "repeated"
        elif field.message_type is None and field.has_presence and (
                field.containing_oneof is None or
                field.containing_oneof.name.startswith("_")):
            label = "optional"
        else:
            label = "singular"
        kind = types[field.type]
        if field.message_type is not None:
            kind = field.message_type.full_name
            add_message(field.message_type)
        if field.enum_type is not None:
            kind = field.enum_type.full_name
            add_enum(field.enum_type)
        oneof = field.containing_oneof
        suffix = ("" if oneof is None or oneof.name.startswith("_")
                  else " in " + oneof.name)
        lines.add(f"field {message.full_name} {field.number} {field.name} "
                  f"{label} {kind}{suffix}")

service = pb.DESCRIPTOR.services_by_name["VllmEngine"]
for method in service.methods:
    add_message(method.input_type)
    add_message(method.output_type)
    streams = (getattr(method, "client_streaming", False),
               getattr(method, "server_streaming", False))
    lines.add(f"method {method.name} {method.input_type.full_name} "
              f"{method.output_type.full_name}"
              f"{' streams' if streams == (False, True) else ''}")
print("\\n".join(sorted(lines)))
'''


def skip(message):
    print(f"SKIPPED, nothing was compared: {message}")
    sys.exit(SKIPPED)


def fetch_package(folder):
    """Returns the Python of an environment that has the package."""
    python = folder / "bin" / "python"
    if not list(folder.glob(
            f"lib/*/site-packages/smg_grpc_proto-{VERSION}.dist-info")):
        venv.create(folder, with_pip=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--retries", "2",
             f"smg-grpc-proto=={VERSION}", "protobuf==7.36.2"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False)
        if done.returncode != 0:
            print(done.stdout)
            if ("connection broken" in done.stdout
                    and "from versions: none" in done.stdout):
                skip("the package index cannot be reached for smg-grpc-proto")
            sys.exit("list_vllm_messages.py: pip could not install the package")
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compare", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    python = fetch_package(arguments.work / f"smg-grpc-proto-{VERSION}")
    text = subprocess.run([python, "-c", LISTER], stdout=subprocess.PIPE,
                          text=True, check=True).stdout
    if arguments.compare is None:
        print(text, end="")
        return
    lines = text.splitlines()
    committed = [line for line in arguments.compare.read_text().splitlines()
                 if not line.startswith("#")]
    if lines != committed:
        print("\n".join(difflib.unified_diff(
            committed, lines, str(arguments.compare), "the package",
            lineterm="")))
        sys.exit(1)
    print(f"equal: {len(lines)} lines")


if __name__ == "__main__":
    main()
