//! `srd run`: runs an unmodified program over the software card.
//!
//! Prepares the environment and becomes the program: signals, exit code and process number are the program's own.

mod bundled;
mod device_files;
mod elf;
pub(crate) mod library;
pub(crate) mod program;
mod standin;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use clap::Args;
use verbs_shim::Options;

use crate::exit::{Exit, Fault, Result};
use crate::options::DeviceArgs;
use crate::{devices, render};
use program::Program;

/// Options of `srd run`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Another name of a libibverbs or libefa that the program brings along: it gets the library under that name, too
    #[arg(long, value_name = "NAME", value_parser = library_name)]
    also: Vec<String>,
    /// Show the program the files of a device, for UCX and others that look for these: '/dev/infiniband' and
    /// '/sys/class/infiniband', in a mount namespace of its own
    #[arg(long, conflicts_with = "print_env")]
    device_files: bool,
    /// Print the variables that would be set, one NAME=VALUE in each line, and run nothing
    #[arg(long)]
    print_env: bool,
    /// The program and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "print_env")]
    command: Vec<OsString>,
}

fn library_name(text: &str) -> std::result::Result<String, String> {
    let separators = ['/', ':', ' '];
    if text.contains(".so") && !text.contains(separators) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{text}' is no name of a library, such as libibverbs-1a2b3c4d.so.1"))
    }
}

/// What to do where namespaces are forbidden.
const NO_FILES: &str = "cannot show the program the files of a device (--device-files), which takes a mount namespace; where \
    containers forbid that, UCX has enough with 'mkdir -p /dev/infiniband && ln -s /dev/null /dev/infiniband/uverbs0'";

/// Variables to set.
type Variables = Vec<(String, OsString)>;

pub(crate) fn run(args: &RunArgs) -> Result<Exit> {
    let options = args.device.options()?;
    let library = library::find(&options)?;
    options.runtime_dir().map_err(|e| Fault::new(Exit::Setup, e))?;
    // A device that cannot be opened is told at once, and not by the program in its own way.
    let devices = options.devices().map_err(|e| Fault::new(Exit::Setup, e))?;
    devices::warn_of_silence(&devices);
    devices.iter().cloned().try_for_each(|device| devices::open(device).map(drop))?;
    let Some((command, rest)) = args.command.split_first() else {
        return print(&variables(args, &options, &library, Program::default().also)?);
    };
    let path = program::find(command)?;
    let program = Program::examine(&path);
    let hint = program::launcher_hint(&path, rest);
    for warning in program.warnings.iter().chain(&hint) {
        render::note(&format!("srd: warning: {warning}"));
    }
    let variables = variables(args, &options, &library, program.also)?;
    if args.print_env {
        return print(&variables);
    }
    if args.device_files {
        device_files::show(&devices).map_err(|e| Fault::new(Exit::Setup, anyhow::Error::new(e).context(NO_FILES)))?;
    }
    tracing::info!("{} gets {} as libibverbs and libefa", path.display(), library.display());
    variables.iter().for_each(|(name, value)| tracing::debug!("{name}={}", value.to_string_lossy()));
    let error = Command::new(&path).arg0(command).args(rest).envs(variables).exec();
    Err(Fault::new(Exit::Setup, anyhow::Error::new(error).context(format!("cannot run {}", path.display()))))
}

fn variables(args: &RunArgs, options: &Options, library: &Path, mut also: BTreeSet<String>) -> Result<Variables> {
    also.extend(args.also.iter().cloned());
    let links = library::links(options, library, &also)?;
    let mut all: Variables = args.device.variables().into_iter().map(|(name, value)| (name, value.into())).collect();
    if !options.fault.is_empty() && options.seed_is_drawn {
        let seed = options.seed;
        render::note(&format!("srd: faults are injected; --seed {seed} repeats them"));
        all.push(("SRD_SEED".to_owned(), seed.to_string().into()));
    }
    all.push(("LD_LIBRARY_PATH".to_owned(), in_front("LD_LIBRARY_PATH", links.as_os_str())));
    if !also.is_empty() {
        let paths: Vec<_> = library::preload(&links, &also).iter().map(|p| p.display().to_string()).collect();
        all.push(("LD_PRELOAD".to_owned(), in_front("LD_PRELOAD", OsStr::new(&paths.join(":")))));
    }
    Ok(all)
}

/// The value of a variable that is a list, with `first` in front.
fn in_front(name: &str, first: &OsStr) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = std::env::var_os(name).filter(|rest| !rest.is_empty() && rest != first) {
        list.push(":");
        list.push(rest);
    }
    list
}

fn print(variables: &Variables) -> Result<Exit> {
    let lines: Vec<_> = variables.iter().map(|(name, value)| format!("{name}={}", value.to_string_lossy())).collect();
    render::text(&lines.join("\n"))?;
    Ok(Exit::Ok)
}
