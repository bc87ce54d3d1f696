"""``plugind probe``: whether a daemon would register a plugin's socket, step by step, without a daemon.

It is meant for plugin authors. It examines the path, dials, calls GetInfo, has the type's handler validate the answer,
dials the endpoint, and checks whether the plugin can be notified. It notifies and exercises it only on request, since a
registrar can react to a notification. The steps are in ``plugind.actors.console.probing``.
"""

from __future__ import annotations

import argparse
import json
import os

import attrs
import trio

from ...protocol.discovery.endpoints import default_directories
from ...protocol.errors import ConfigError
from ...protocol.settings.config import Root
from ...protocol.settings.rules import Rules
from ...protocol.status.json import Json
from ...protocol.text import encodable, escaped
from ...protocol.trust.users import Trust
from ..handlers.handler import Handler
from ..node.handlers import built_in_handlers, installed_handlers
from ..trust.users import users_of
from .answers import daemon
from .arguments import add_trust_argument
from .beside import registered_at, rules_of
from .ending import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, CommandError, say
from .findings import Fate, ProbeOptions, ProbeResult, ProbeStep, Verdict
from .output import add_output_argument
from .probe_places import as_discovered
from .probing import probe
from .status_socket import add_answer_timeout
from .times import seconds

_EPILOG = """exit codes:
  0  nothing is wrong: a daemon would register the plugin, and its endpoint can be called
  1  something is wrong: the lines with ✗ say what, and the last one what a daemon would do
  2  wrong usage
  69 no daemon answers at the socket that --status names
  78 an installed handler cannot be loaded, or a user to trust does not exist

The probe judges for a daemon of the user that runs it: one that trusts root, that user, and those of --trust-uid, and
whose root is the one of --root in which the socket lies, else the kubelet's directory or that of the socket. With
--status, the daemon there is asked for its rules, to which the options only add; a line says so.

A server may have the method NotifyRegistrationStatus and answer that it is not implemented, as generated base classes
do. Only --notify finds that out, since only then the method is called.

With --exercise a device plugin is notified, or need not be if it registers by a call. Then the probe waits for a list
and a second one, judges their devices and words of health, and calls GetPreferredAllocation if it is offered, Allocate
for one device and for all healthy ones, and PreStartContainer if it is required. Some seconds later the plugin must
still serve. These calls have the deadlines of a daemon, besides --timeout. Allocate can program or reset devices, and
nothing takes it back: use --exercise where nobody uses the devices.

With --strict the kubelet of Kubernetes 1.36 is meant instead of a daemon. It knows three types, reaches no path of more
than 107 bytes, accepts no CSI driver of 0.x in any directory, and calls drivers at once: NodeGetInfo for CSI,
GetDevicePluginOptions for device plugins. What plugind refuses in the info of any type stays wrong, also where the
kubelet does not look: endpoints that are no unix sockets, names that cannot be printed.

examples:
  plugind probe ./my-plugin-reg.sock
  plugind probe /run/a.sock -o json --timeout 3
  plugind probe /var/lib/kubelet/device-plugins/gpu.sock --exercise
  plugind probe /var/lib/kubelet/plugins_registry/a.sock --strict"""

#: The actions of a daemon, and those of the kubelet.
_DOES = {
    Fate.REGISTERED: ("register this plugin", "register this plugin"),
    Fate.UNUSABLE: (
        "register this plugin, but nothing can be called on its endpoint",
        "register this plugin, but could call nothing on its endpoint",
    ),
    Fate.IGNORED: ("ignore this path", "ignore this path"),
    Fate.STALE: (
        "show this socket as stale, and try it again at growing intervals",
        "find nobody at this socket, and try it again at growing intervals",
    ),
    Fate.FAILED: (
        "not register this plugin, but try it again at growing intervals",
        "not register this plugin, but try it again at growing intervals",
    ),
    Fate.PARKED: (
        "park this plugin, and not try it again before its socket changes",
        "not register this plugin, but try it again at growing intervals",
    ),
    Fate.NO_HANDLER: (
        "not register this plugin, and park it until a handler for its type is added",
        "not register this plugin, but try it again at growing intervals",
    ),
    Fate.BY_CALL: (
        "register this plugin once it calls Register, with 'plugind run --device-plugins=DIR'",
        "register this plugin once it calls Register",
    ),
    Fate.DEREGISTERED: (
        "register this plugin, and deregister it because it cannot be notified",
        "register this plugin, deregister it because it cannot be notified, and try it again",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind probe``."""
    parser.description = (
        "Say step by step what a daemon would make of a plugin's registration socket. No daemon is needed, and the"
        " plugin is not notified unless --notify or --exercise is given."
    )
    parser.epilog = _EPILOG
    parser.add_argument("socket", metavar="SOCKET", help="the path of the registration socket")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds(0.01, 86_400.0),
        default=ProbeOptions().timeout,
        help="for the whole probe but --exercise, in seconds (default: %(default)g)",
    )
    add_output_argument(parser, "one object, with the steps and the result")
    parser.add_argument(
        "--notify", action="store_true", help="also notify the plugin that it is registered, as a daemon would"
    )
    parser.add_argument(
        "--exercise",
        action="store_true",
        help="also notify a device plugin, follow its lists, and call Allocate and what else leases call, which can"
        " program or reset its devices: use it where nobody uses them",
    )
    parser.add_argument("--strict", action="store_true", help="apply the rules of the kubelet")
    parser.add_argument(
        "--status",
        metavar="PATH",
        help="judge by the rules of the daemon with this status socket, and beside the plugins that it has registered",
    )
    parser.add_argument(
        "--root",
        action="append",
        default=[],
        metavar="DIR",
        help="a root of the daemon, as for plugind run; repeatable",
    )
    parser.add_argument(
        "--insecure-root", action="store_true", help="do not judge who may write to roots and to what is below them"
    )
    parser.add_argument(
        "--endpoint-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="where else endpoints may be, as for plugind run; repeatable",
    )
    add_answer_timeout(parser)
    parser.add_argument(
        "--deprecated", action="store_true", help="apply the rules for a root that is marked deprecated"
    )
    add_trust_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Probe a plugin; return the exit code.

    Raises:
      CommandError: if an installed handler cannot be loaded, a user does not exist, or the given daemon does not
        answer.
    """
    options = _options(args)
    result = trio.run(_probe, args, options, os.path.abspath(args.socket))
    if args.output == "json":
        say(json.dumps(_to_json(args.socket, result)) + "\n")
    else:
        say(_last_line(result, options) + "\n")
    return EXIT_OK if result.well else EXIT_FAILED


def _options(args: argparse.Namespace) -> ProbeOptions:
    trust = Trust(tuple(args.trust_uid or ()))
    try:
        users = users_of(trust)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_CONFIG) from error
    roots = tuple(Root(os.path.abspath(path), args.deprecated, args.insecure_root) for path in args.root)
    return ProbeOptions(
        args.timeout,
        notify=args.notify or args.exercise,
        exercise=args.exercise,
        strict=args.strict,
        deprecated=args.deprecated,
        trust=trust,
        users=users,
        roots=roots,
        insecure=args.insecure_root,
        endpoint_directories=(
            *default_directories(root.path for root in roots),
            *map(os.path.abspath, args.endpoint_dir),
        ),
    )


def _judging_by(rules: Rules | None, options: ProbeOptions, asked: str) -> ProbeOptions:
    """Return the options with the rules of the daemon at ``asked``, to which the options only add."""
    options = attrs.evolve(options, asked=os.path.abspath(asked))
    if rules is None:
        return options
    roots = (
        attrs.evolve(root, deprecated=root.deprecated or options.deprecated, insecure=root.insecure or options.insecure)
        for root in rules.roots
    )
    return attrs.evolve(
        options,
        answered=True,
        trust=Trust((*rules.trust.uids, *options.trust.uids)),
        users=attrs.evolve(rules.users, by_name=options.users.by_name),
        roots=(*roots, *options.roots),
        endpoint_directories=tuple(dict.fromkeys((*rules.endpoint_directories, *options.endpoint_directories))),
    )


async def _probe(args: argparse.Namespace, options: ProbeOptions, socket: str) -> ProbeResult:
    others = None
    if args.status is not None:
        asked = daemon(args)
        options = _judging_by(rules_of(asked), options, asked.path)
        others = registered_at(asked, but=as_discovered(socket, options))
    return await probe(args.socket, _handlers(options), options, _skip if args.output == "json" else _show, others)


def _handlers(options: ProbeOptions) -> dict[str, Handler]:
    """Return the handlers of ``plugind run``. For the kubelet's types, the kubelet has only the built-in ones."""
    try:
        installed = installed_handlers()
    except ConfigError as error:
        raise CommandError(str(error), EXIT_CONFIG) from error
    return installed | built_in_handlers() if options.strict else built_in_handlers() | installed


def _show(step: ProbeStep) -> None:
    sign = {Verdict.OK: "✓", Verdict.WARNING: "!", Verdict.WRONG: "✗"}[step.verdict]
    took = "" if step.seconds is None else f" ({step.seconds * 1000:.1f} ms)"
    say(f"{sign} {step.step}: {escaped(step.detail)}{took}\n", now=True)


def _skip(step: ProbeStep) -> None:
    del step


def _last_line(result: ProbeResult, options: ProbeOptions) -> str:
    who = "the kubelet" if options.strict else "a daemon"
    does = _DOES[result.fate][1 if options.strict else 0]
    if not result.well:
        return f"{who} would {does}: see ✗ above"
    return f"{who} would {does}" if options.notify else f"{who} would {does}; it was not notified (--notify does that)"


def _to_json(path: str, result: ProbeResult) -> dict[str, Json]:
    return {
        "socket": encodable(path),
        "ok": result.well,
        "outcome": result.fate.value,
        "steps": [_step_to_json(step) for step in result.steps],
    }


def _step_to_json(step: ProbeStep) -> dict[str, Json]:
    return {
        "step": step.step,
        "verdict": step.verdict.value,
        "detail": encodable(step.detail),
        "seconds": None if step.seconds is None else round(step.seconds, 6),
    }
