"""What every error code means and how to mend what it tells: `supctl help CODE`, docs/error-codes.md.

Codes stay stable, so that scripts and searches can rely on them. The letter says where to look: J is the job file, S is
supd.toml, F is supd with its fleet and runs, C is supctl and suprun.
"""

from typing import NamedTuple

from supervisor.cli.client_codes import CLIENT
from supervisor.cli.code_entry import Entry, one
from supervisor.cli.file_codes import FILES


class Section(NamedTuple):
    """The codes of one letter, or of the two files."""

    title: str
    about: str
    entries: tuple[Entry, ...]


_FLEET = (
    one("F000", "an error without a code of its own", "report it: that is a bug"),
    one("F001", "the command line is not one that supd has", "`supd --help`"),
    one("F010", "the fleet's credential could not be made", "check the folder's permissions and its room"),
    one("F011", "the credential can be read by others, or is not yours", "`chmod 600`, or a file of your own"),
    one("F012", "what lies there is no credential", "name another `[fleet] credential`; where nothing is, one is made"),
    one(
        "F013",
        "there is no fleet key here, and none is made where a node joins another one",
        "copy `fleet.pem` of the host to this node, 0600; or `supd fleet key new`, and copy that one to every node",
    ),
    one(
        "F014",
        "there is a fleet key already, and it is not overwritten",
        "to change it, stop all supd of the fleet, move it away, make a new one and copy it to every node",
    ),
    one(
        "F020",
        "the journal cannot be used",
        "see that its disk has room; a damaged one can be moved away: supd begins anew, and no longer knows its runs, "
        "whose ranks go on until they end",
    ),
    one(
        "F021",
        "the journal is another version's, or another program's file",
        "use the supd that wrote it, or another `[state] dir`",
    ),
    one(
        "F022",
        "the journal could not be written: what was asked for was not done",
        "make room on its disk, and ask again; ranks go on meanwhile",
    ),
    one("F030", "supd cannot listen for runners", "free the port, or set `[listen] peer`"),
    one(
        "F031",
        "another supd uses the state folder",
        "talk to that one, or give this one its own `[state] dir` and `[listen] control`",
    ),
    one("F032", "another supd listens at the control socket", "give this one its own `[listen] control`"),
    one(
        "F033",
        "the control socket cannot be made, or something that is no socket lies there",
        "name another `[listen] control`",
    ),
    one("F034", "supd cannot begin in its folders", "see `[state]` in supd.toml"),
    one("F035", "supd cannot write down where its coordinator listens", "see that the disk has room"),
    one("F040", "the output of a run cannot be read", "look at its folder: `supctl logs --path`"),
    one("F041", "the answer is too large", "name one job"),
    one("F101", "a run of this job is still active", "stop it, or give the job another name"),
    one("F102", "there is no such job or run", "`supctl status` lists them"),
    one("F103", "several jobs are active, and none was named", "name one"),
    one("F104", "the run cannot be changed: it is over, or being stopped", "start it again"),
    one(
        "F105",
        "the job with its environment is too large to be handed to runners",
        'pass less on: `run.inherit_env = ["PATH", "HOME"]`',
    ),
    one("F106", "files of a job do not answer: its folder, or its output", "look after that file system"),
    one(
        "F107",
        "what was asked for is not on disk yet",
        "make room: it is carried out as soon as it can be written down",
    ),
    one(
        "F108",
        "the run that was to be replaced is not gone in time",
        "`supctl status` shows what it waits for; start again once it is over",
    ),
    one("F109", "the run has no such rank", "`supctl ps` lists them"),
    one(
        "F110",
        "the supd that hosts the coordinator does not answer this node's, or does not take it in: runs go on meanwhile "
        "where their nodes reach each other, and end where one is cut off (`lease.fence`)",
        "what it says, where it says something; else look after that machine, its supd, the network between; "
        "`[fleet] join` in supd.toml says where it is",
    ),
    one("F111", "two nodes run releases of supd that do not understand each other", "use one release on all nodes"),
    one("F112", "the fleet has no such node", "`supctl nodes` lists them"),
    one(
        "F113",
        "a node does not tell what only it knows of its ranks",
        "`supctl describe node NODE`; look after that node, or after the file system that does not answer",
    ),
    one(
        "F114",
        "a restart without that node would leave fewer nodes than the job wants",
        "restart with it, or let the job take fewer: MIN of `topology.nnodes`",
    ),
    one(
        "F115",
        "an operator gives up a node that answers",
        "its own supd says what runs there, and has the runner that is waited for; `supctl restart JOB --without NODE` "
        "goes on without it; where only its runner does not answer, end that one with SIGKILL",
    ),
    one(
        "F116",
        "a restart is wanted of a run that the coordinator takes over, before all its runners have told what runs",
        "`supctl status` says who is waited for; then restart it, or stop it now",
    ),
    one(
        "F121",
        "a run is to go on with the file of another job, or is being given another one at this moment",
        "`name` in the file has to be that of the run; `supctl start` begins a run of its own",
    ),
    one("F122", "a run is to be on more nodes at least than at most", "`--nnodes MIN:MAX`, the smaller number first"),
    one(
        "F123", "a run is to go on that is not held", "`supctl status` says what it does; `supctl restart` restarts it"
    ),
    one("F201", "fewer devices than ranks", 'lower `nproc_per_node`, or set `devices.visibility = "all"`'),
    one(
        "F202",
        "the node has no device of the kind that `nproc_per_node` asks for",
        'write a number, `"auto"` or `"cpu"`',
    ),
    one(
        "F203",
        "the port that `rendezvous.master_port` names is in use: by another program, or by a run since it was checked",
        'free it, name another, or write `"auto"`',
        "master_port = 29500",
        'master_port = "auto"',
    ),
    one("F204", "the node has no free TCP port for rank 0", "`ss -tan`; widen `net.ipv4.ip_local_port_range`"),
    one(
        "F205",
        "a runner may not open as many files as its ranks take",
        "start supd with a higher hard limit (`ulimit -Hn`, `LimitNOFILE=` in its unit), or lower `nproc_per_node`",
    ),
    one("F206", "NVIDIA's driver does not answer", "`nvidia-smi`; the kernel's log names a GPU that hangs"),
    one(
        "F207",
        "a warning: a limit that ranks are to have is above the node's hard one, which they get instead",
        "start supd with a higher one (`ulimit -H`, `LimitNOFILE=` in its unit), or lower the limit",
    ),
    one(
        "F208",
        "a warning: ranks would run in the environment that supd was installed into, which has no torch",
        "name your own interpreter with `run.python`, or your program by its path",
    ),
    one(
        "F209",
        "a node of several has not the job's script or interpreter",
        "put them on all nodes at the same paths, or leave that node out with `topology.exclude`",
    ),
    one(
        "F210",
        "a node has no TCP port on which its runner can listen for the other nodes' runners",
        "`ss -tlnp` there; name other ports in `[listen] runners` of its supd.toml, or more",
    ),
    one(
        "F211",
        "fewer nodes than the job wants have as many slots as it has ranks on each, even if all were free",
        "lower `topology.nproc_per_node` or `nnodes`, or raise `[node] devices` in supd.toml; a job that uses no "
        'accelerator takes no slots where `run.env` has `CUDA_VISIBLE_DEVICES = ""`',
        "[topology]\nnproc_per_node = 16",
        "[topology]\nnnodes = 2\nnproc_per_node = 8",
    ),
    one(
        "F212",
        'a node has not a GPU for each rank, which `run.backend = "nccl"` needs',
        'write `"gloo"` or `"auto"`, lower `nproc_per_node`, or leave that node out with `topology.exclude`',
    ),
    one(
        "F213",
        "where a rank's GPU is, and so which CPUs `devices.numa_binding` binds it to, cannot be known on a node",
        "leave `numa_binding` (`--numa-binding`) out, or leave that node out with `topology.exclude`",
    ),
    one(
        "F301",
        "a node, or whoever else connects, is of another fleet",
        "write the same `[fleet] name` on all nodes, or `[fleet] join` of the fleet that is meant",
    ),
    one("F302", "a node and the coordinator speak no common version of the protocol", "install the same supd on both"),
    one(
        "F303",
        "`[fleet] join` of a node begins with another entry than that of the node that hosts the coordinator",
        "write the same list on every node; its first entry is the node that hosts",
        'join = ["gpu-02:29410", "gpu-01:29410"]',
        'join = ["gpu-01:29410", "gpu-02:29410"]',
    ),
    one(
        "F304",
        "another node, or another supd with a copy of the state folder, has this name and answers, or did a moment ago",
        "give one of them another `[node] name`; a state folder is never copied or shared",
    ),
    one(
        "F305",
        "a new state folder, or a copy of one, has the name of a node that does not answer, where a run may go on",
        "start supd with the state folder that it had, or give it another `[node] name` until the run is over",
    ),
    one(
        "F306",
        "the coordinator does not reach a node at the address by which its peers are to reach it",
        "open the node's port in its firewall, or name an address that peers reach: `[listen] advertise`",
    ),
    one(
        "F307",
        "the fleet has no room for another node, or too many join at this moment",
        "nodes try again by themselves; names that were given up are forgotten once there is no room",
    ),
    one(
        "F308",
        "a node was asked that does not host the coordinator",
        "nodes try the next entry of `[fleet] join` by themselves; write the same list on every node",
    ),
    one(
        "F309",
        "this node is to host the coordinator, and no entry of `[fleet] join` is its address: nobody would find it",
        "add it to the list on every node, behind the first entry",
        'join = ["gpu-01:29410"]',
        'join = ["gpu-01:29410", "gpu-02:29410"]',
    ),
    one(
        "F310",
        "the coordinator is to move here, and its host lives, was heard a moment ago, or nobody can say",
        "stop its supd, then `supd run --coordinator`; with `--old-is-dead` where it is off and cannot be asked",
    ),
    one(
        "F311",
        "the coordinator is to move here, and the journal of another node was put in place of this node's own",
        "put it into the folder `moved` in the state folder, and back what it replaced",
    ),
    one(
        "F320",
        "suprun was started on two nodes of a job with lines that do not fit together",
        "start it with the same options, but for `--node-rank` and `--local-addr`, and the same script on every node, "
        "and of one version",
    ),
)

SECTIONS = (
    Section(
        "Files: J job.toml, S supd.toml",
        "All problems of a file are told at once. The file as a whole has J000 or S000.",
        FILES,
    ),
    Section("F: supd, its fleet and runs", "", _FLEET),
    Section("C: supctl and suprun", "", CLIENT),
)

CODES = {code: entry for section in SECTIONS for entry in section.entries for code in entry.codes}
