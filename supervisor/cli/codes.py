"""What every error code means and how to mend what it tells: `supctl help CODE`, docs/error-codes.md.

Codes stay stable, so that scripts and searches can rely on them. The letter says where to look: J is the job file, S is
supd.toml, F is supd with its fleet and runs, C is supctl.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """One thing that can be wrong. It has two codes where it can be wrong with either file."""

    codes: tuple[str, ...]
    meaning: str
    mend: str
    wrong: str = ""  # an example, as it would stand in a file or a shell
    right: str = ""  # and what mends it


class Section(NamedTuple):
    """The codes of one letter, or of the two files."""

    title: str
    about: str
    entries: tuple[Entry, ...]


def _both(number: int, meaning: str, mend: str, wrong: str = "", right: str = "") -> Entry:
    return Entry((f"J{number:03}", f"S{number:03}"), meaning, mend, wrong, right)


def _one(code: str, meaning: str, mend: str, wrong: str = "", right: str = "") -> Entry:
    return Entry((code,), meaning, mend, wrong, right)


_FILES = (
    _both(0, "the file has problems, those listed", "mend them all; `supctl validate FILE` checks a job file"),
    _both(
        1,
        "not TOML",
        "strings stand in quotes, arrays in brackets, a key only once in its table",
        "script = train.py",
        'script = "train.py"',
    ),
    _both(2, "not UTF-8", "save it as UTF-8"),
    _both(
        3,
        "larger than 1 MiB, or more than 20,000 keys and items",
        "see whether it is the right file; data belongs in files of its own",
    ),
    _one(
        "J004",
        "empty",
        "the least is `name` and `[run] script`",
        "",
        'name = "my-job"\n\n[run]\nscript = "train.py"',
    ),
    _both(5, "more than 100 problems", "mend those listed; see whether it is the right file"),
    _one(
        "J006",
        "a `--set` that is not KEY=VALUE, or too many or too long ones",
        "a key of the job file with its table, = and a value; much of it belongs into the file",
        "supctl start job.toml --set grace",
        "supctl start job.toml --set stop.grace=2m",
    ),
    _both(
        101,
        "unknown key",
        "what it says under the message: the near one, or the table where it belongs",
        "[topology]\nnproc_pernode = 8",
        "[topology]\nnproc_per_node = 8",
    ),
    _both(102, "unknown table", "the near one it names", "[restarts]", "[restart]"),
    _both(103, "a key or value that this version does not have", "leave it out"),
    _both(201, "wrong type", "write the type it names", 'max_restarts = "3"', "max_restarts = 3"),
    _both(
        202,
        "a key is missing",
        "write it",
        '[run]\nscript = "train.py"',
        'name = "my-job"\n\n[run]\nscript = "train.py"',
    ),
    _both(
        203,
        "not one of the words it can be",
        "write one of those it lists",
        'policy = "always"',
        'policy = "on-failure"',
    ),
    _both(
        204,
        "not a duration, or one without a unit",
        'write `"90s"`, `"1h30m"`, `"500ms"`',
        "grace = 300",
        'grace = "300s"',
    ),
    _both(205, "a number out of range", "stay within the limits it names", "nproc_per_node = 0", "nproc_per_node = 1"),
    _both(
        206,
        "text that is empty, holds a NUL, or has not the form it needs",
        "write it in the form it names",
        'name = "My Job"',
        'name = "my-job"',
    ),
    _one(
        "J207",
        "not a signal, or one that cannot be used there",
        'write a name like `"SIGTERM"`',
        'pre_signal = "SIGUSER1"',
        'pre_signal = "SIGUSR1"',
    ),
    _one(
        "J208",
        "not a variable's name, or a variable that supd sets itself",
        "leave it out",
        'env = { RANK = "0" }',
        "env = {}",
    ),
    _one(
        "J210",
        "a range whose least is above its most",
        "write the lower number first",
        'nnodes = "8:4"',
        'nnodes = "4:8"',
    ),
    _one(
        "J301",
        "not exactly one of `script`, `module` and `command`",
        "keep one",
        '[run]\nscript = "train.py"\nmodule = "train"',
        '[run]\nscript = "train.py"',
    ),
    _one(
        "J302",
        "two keys contradict each other",
        "change one of them",
        "never_on_exit = [2, 3]\nalways_on_exit = [3]",
        "never_on_exit = [2]\nalways_on_exit = [3]",
    ),
    _one("J401", "no interpreter that can be executed on this node", "name one with `run.python`, or set PATH"),
    _one(
        "J402",
        "a script, env_file or workdir that is not on this node",
        "relative paths start at the job file's folder",
    ),
    _one("J403", "the program of `run.command` is not on this node, or not executable", "name its path, or set PATH"),
    _one(
        "J404",
        "an env_file with lines that are no variables, or that set what supd sets itself",
        "write NAME=VALUE, and leave out what `supctl help job.toml run` lists",
    ),
    _one(
        "J405",
        "the node has not the devices that the ranks are to have",
        'write a number, `"auto"` or `"cpu"`, or `devices.visibility = "all"`',
    ),
    _one(
        "J406",
        "the port that `rendezvous.master_port` names is supd's own, that of another run, or another program's",
        'name another, or write `"auto"`',
    ),
    _one(
        "J407",
        "a runner may not open as many files on this node as the ranks take",
        "start supd with a higher hard limit (`ulimit -Hn`, `LimitNOFILE=` in its unit), or lower `nproc_per_node`",
    ),
    _one(
        "J412",
        "not a regular expression, or one without a group that it needs",
        "name the group: `(?P<step>…)`; the form is that of Python's `re`",
        r"log_pattern = 'step (\d+)'",
        r"log_pattern = 'step (?P<step>\d+)'",
    ),
    _one(
        "J501",
        "a warning: a limit on progress, where no rank is watched, or ranks to look at that are not there",
        "name a source of progress and ranks of the job, or leave the key out",
        '[progress]\nsource = "none"\n\n[hang]\nstep_timeout = "10m"',
        '[hang]\nstep_timeout = "10m"',
    ),
    _one(
        "J502",
        "a warning: restarts are wanted, and nothing says how a save is seen",
        "name the file that tells the last saved step",
        "[restart]\nmax_restarts = 3",
        '[restart]\nmax_restarts = 3\n\n[checkpoint]\nmarker = "out/latest.txt"',
    ),
    _one(
        "J503",
        "a warning: a key that does nothing without another",
        "write the other one as well, or leave this one out",
        '[stop]\npre_wait = "1m"',
        '[stop]\npre_signal = "SIGUSR1"\npre_wait = "1m"',
    ),
    _one(
        "J504",
        "a warning: a limit that passes before another that it builds on, or a wait above the longest one",
        "write them in their order",
        '[restart]\nbackoff = "5m"',
        '[restart]\nbackoff = "5m"\nbackoff_max = "10m"',
    ),
    _one(
        "J505",
        "a warning: ranks on several nodes are told to talk by an interface that ends in their own",
        "name the interface of the network between the nodes, or leave it out: gloo and NCCL find one",
        '[topology]\nnnodes = 2\n\n[run.env]\nGLOO_SOCKET_IFNAME = "lo"',
        '[topology]\nnnodes = 2\n\n[run.env]\nGLOO_SOCKET_IFNAME = "eth0"',
    ),
    _one(
        "S210",
        "a range whose first port is above its last",
        "write the lower one first",
        'runners = "29599-29500"',
        'runners = "29500-29599"',
    ),
    _one(
        "S211",
        "not an address, one with or without a port where the other is wanted, or IPv6 without brackets",
        'write `"HOST:PORT"`, or `"[ADDRESS]:PORT"` for IPv6',
        'join = ["::1:29410"]',
        'join = ["[::1]:29410"]',
    ),
    _one(
        "S301",
        "keys that exclude each other",
        "keep one",
        'advertise = "10.0.0.7"\ninterface = "eth0"',
        'advertise = "10.0.0.7"',
    ),
    _one(
        "S302",
        "two keys contradict each other",
        "change one of them",
        '[listen]\npeer = "*:0"\n\n[fleet]\njoin = ["gpu-01"]',
        '[fleet]\njoin = ["gpu-01"]',
    ),
    _one("S212", "the control socket's path is too long for the kernel", "name a shorter `[listen] control`"),
    _one(
        "S401",
        "a file or folder that cannot be read, made or used, or that others may use",
        "what it says; or name another in supd.toml",
    ),
)

_FLEET = (
    _one("F000", "an error without a code of its own", "report it: that is a bug"),
    _one("F001", "the command line is not one that supd has", "`supd --help`"),
    _one("F010", "the fleet's credential could not be made", "check the folder's permissions and its room"),
    _one("F011", "the credential can be read by others, or is not yours", "`chmod 600`, or a file of your own"),
    _one(
        "F012", "what lies there is no credential", "name another `[fleet] credential`; where nothing is, one is made"
    ),
    _one(
        "F013",
        "there is no fleet key here, and none is made where a node joins another one",
        "copy `fleet.pem` of the host to this node, 0600; or `supd fleet key new`, and copy that one to every node",
    ),
    _one(
        "F014",
        "there is a fleet key already, and it is not overwritten",
        "to change it, stop all supd of the fleet, move it away, make a new one and copy it to every node",
    ),
    _one(
        "F020",
        "the journal cannot be used",
        "see that its disk has room; a damaged one can be moved away: supd begins anew, and no longer knows its runs, "
        "whose ranks go on until they end",
    ),
    _one(
        "F021",
        "the journal is another version's, or another program's file",
        "use the supd that wrote it, or another `[state] dir`",
    ),
    _one(
        "F022",
        "the journal could not be written: what was asked for was not done",
        "make room on its disk, and ask again; ranks go on meanwhile",
    ),
    _one("F030", "supd cannot listen for runners", "free the port, or set `[listen] peer`"),
    _one(
        "F031",
        "another supd uses the state folder",
        "talk to that one, or give this one its own `[state] dir` and `[listen] control`",
    ),
    _one("F032", "another supd listens at the control socket", "give this one its own `[listen] control`"),
    _one(
        "F033",
        "the control socket cannot be made, or something that is no socket lies there",
        "name another `[listen] control`",
    ),
    _one("F034", "supd cannot begin in its folders", "see `[state]` in supd.toml"),
    _one("F035", "supd cannot write down where its coordinator listens", "see that the disk has room"),
    _one("F040", "the output of a run cannot be read", "look at its folder: `supctl logs --path`"),
    _one("F041", "the answer is too large", "name one job"),
    _one("F101", "a run of this job is still active", "stop it, or give the job another name"),
    _one("F102", "there is no such job or run", "`supctl status` lists them"),
    _one("F103", "several jobs are active, and none was named", "name one"),
    _one("F104", "the run cannot be restarted: it is over, or being stopped", "start it again"),
    _one(
        "F105",
        "the job with its environment is too large to be handed to runners",
        'pass less on: `run.inherit_env = ["PATH", "HOME"]`',
    ),
    _one("F106", "files of a job do not answer: its folder, or its output", "look after that file system"),
    _one(
        "F107",
        "what was asked for is not on disk yet",
        "make room: it is carried out as soon as it can be written down",
    ),
    _one(
        "F108",
        "the run that was to be replaced is not gone in time",
        "`supctl status` shows what it waits for; start again once it is over",
    ),
    _one("F109", "the run has no such rank", "`supctl ps` lists them"),
    _one(
        "F110",
        "the supd that hosts the coordinator does not answer this node's, or does not take it in: runs go on meanwhile "
        "where their nodes reach each other, and end where one is cut off (`lease.fence`)",
        "what it says, where it says something; else look after that machine, its supd, the network between; "
        "`[fleet] join` in supd.toml says where it is",
    ),
    _one("F111", "two nodes run releases of supd that do not understand each other", "use one release on all nodes"),
    _one("F112", "the fleet has no such node", "`supctl nodes` lists them"),
    _one(
        "F113",
        "a node does not tell what only it knows of its ranks",
        "`supctl describe node NODE`; look after that node, or after the file system that does not answer",
    ),
    _one(
        "F114",
        "a restart without that node would leave fewer nodes than the job wants",
        "restart with it, or let the job take fewer: MIN of `topology.nnodes`",
    ),
    _one(
        "F115",
        "an operator gives up a node that answers",
        "its own supd says what runs there, and has the runner that is waited for; `supctl restart JOB --without NODE` "
        "goes on without it; where only its runner does not answer, end that one with SIGKILL",
    ),
    _one(
        "F116",
        "a restart is wanted of a run that the coordinator takes over, before all its runners have told what runs",
        "`supctl status` says who is waited for; then restart it, or stop it now",
    ),
    _one("F201", "fewer devices than ranks", 'lower `nproc_per_node`, or set `devices.visibility = "all"`'),
    _one(
        "F202",
        "the node has no device of the kind that `nproc_per_node` asks for",
        'write a number, `"auto"` or `"cpu"`',
    ),
    _one(
        "F203",
        "the port that `rendezvous.master_port` names is in use: by another program, or by a run since it was checked",
        'free it, name another, or write `"auto"`',
        "master_port = 29500",
        'master_port = "auto"',
    ),
    _one("F204", "the node has no free TCP port for rank 0", "`ss -tan`; widen `net.ipv4.ip_local_port_range`"),
    _one(
        "F205",
        "a runner may not open as many files as its ranks take",
        "start supd with a higher hard limit (`ulimit -Hn`, `LimitNOFILE=` in its unit), or lower `nproc_per_node`",
    ),
    _one("F206", "NVIDIA's driver does not answer", "`nvidia-smi`; the kernel's log names a GPU that hangs"),
    _one(
        "F207",
        "a warning: a limit that ranks are to have is above the node's hard one, which they get instead",
        "start supd with a higher one (`ulimit -H`, `LimitNOFILE=` in its unit), or lower the limit",
    ),
    _one(
        "F208",
        "a warning: ranks would run in the environment that supd was installed into, which has no torch",
        "name your own interpreter with `run.python`, or your program by its path",
    ),
    _one(
        "F209",
        "a node of several has not the job's script or interpreter",
        "put them on all nodes at the same paths, or leave that node out with `topology.exclude`",
    ),
    _one(
        "F210",
        "a node has no TCP port on which its runner can listen for the other nodes' runners",
        "`ss -tlnp` there; name other ports in `[listen] runners` of its supd.toml, or more",
    ),
    _one(
        "F301",
        "a node, or whoever else connects, is of another fleet",
        "write the same `[fleet] name` on all nodes, or `[fleet] join` of the fleet that is meant",
    ),
    _one("F302", "a node and the coordinator speak no common version of the protocol", "install the same supd on both"),
    _one(
        "F303",
        "`[fleet] join` of a node begins with another entry than that of the node that hosts the coordinator",
        "write the same list on every node; its first entry is the node that hosts",
        'join = ["gpu-02:29410", "gpu-01:29410"]',
        'join = ["gpu-01:29410", "gpu-02:29410"]',
    ),
    _one(
        "F304",
        "another node, or another supd with a copy of the state folder, has this name and answers, or did a moment ago",
        "give one of them another `[node] name`; a state folder is never copied or shared",
    ),
    _one(
        "F305",
        "a new state folder, or a copy of one, has the name of a node that does not answer, where a run may go on",
        "start supd with the state folder that it had, or give it another `[node] name` until the run is over",
    ),
    _one(
        "F306",
        "the coordinator does not reach a node at the address by which its peers are to reach it",
        "open the node's port in its firewall, or name an address that peers reach: `[listen] advertise`",
    ),
    _one(
        "F307",
        "the fleet has no room for another node, or too many join at this moment",
        "nodes try again by themselves; names that were given up are forgotten once there is no room",
    ),
    _one(
        "F308",
        "a node was asked that does not host the coordinator",
        "nodes try the next entry of `[fleet] join` by themselves; write the same list on every node",
    ),
    _one(
        "F309",
        "this node is to host the coordinator, and no entry of `[fleet] join` is its address: nobody would find it",
        "add it to the list on every node, behind the first entry",
        'join = ["gpu-01:29410"]',
        'join = ["gpu-01:29410", "gpu-02:29410"]',
    ),
    _one(
        "F310",
        "the coordinator is to move here, and its host lives, was heard a moment ago, or nobody can say",
        "stop its supd, then `supd run --coordinator`; with `--old-is-dead` where it is off and cannot be asked",
    ),
    _one(
        "F311",
        "the coordinator is to move here, and the journal of another node was put in place of this node's own",
        "put it into the folder `moved` in the state folder, and back what it replaced",
    ),
)

_CLIENT = (
    _one("C001", "no supd answers there", "`supd run`, or name its socket with `--addr`"),
    _one(
        "C002", "supd is there and does not answer", "look at its log, end it and start it again: runs go on meanwhile"
    ),
    _one("C003", "supd is older or newer than this supctl", "use the supctl installed beside it, or restart supd"),
    _one("C004", "supd went away in the middle", "`supctl status` once it is back"),
    _one("C005", "what answers there does not speak supd's protocol", "`supctl version`; see whose socket it is"),
    _one(
        "C006",
        "the socket is another account's",
        "start a supd of your own, or name another socket with `--addr`",
    ),
    _one(
        "C007",
        "the request is too large, mostly for its environment",
        "unset large variables, or set `run.inherit_env`",
    ),
    _one("C008", "supd knows no such run", "`supctl status` lists them"),
    _one("C009", "the run has no such rank, or no such node", "`supctl ps` and `supctl nodes` list them"),
    _one("C010", "the command line is not one that supctl has", "`supctl COMMAND --help`"),
    _one("C011", "the job file cannot be read", "give the path of a job file"),
    _one("C012", "the run has no such generation", "`supctl status JOB` names the newest"),
    _one("C013", "a name or folder is not UTF-8", "use names that are"),
    _one(
        "C014",
        "the system refused something: output to a full disk, a working directory that is gone",
        "what it says",
    ),
    _one("C015", "`supctl init` overwrites nothing", "`--force`, `--stdout`, or another FILE"),
    _one("C016", "a file cannot be written", "name another, or look after the folder and its disk"),
    _one("C017", "`supctl wait` has waited for as long as `--timeout` says", "`supctl status JOB`; the run goes on"),
    _one("C018", "supctl asks before it does this, and there is no terminal to ask on", "make sure, then `--yes`"),
)

SECTIONS = (
    Section(
        "Files: J job.toml, S supd.toml",
        "All problems of a file are told at once. The file as a whole has J000 or S000.",
        _FILES,
    ),
    Section("F: supd, its fleet and runs", "", _FLEET),
    Section("C: supctl", "", _CLIENT),
)

CODES = {code: entry for section in SECTIONS for entry in section.entries for code in entry.codes}
