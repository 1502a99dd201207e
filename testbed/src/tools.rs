//! Runs `ip`, `tc`, `nft` and `ethtool`, and says what is missing.

use std::env;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;

/// Says whether beds can be built here, and if not, in one sentence what to do.
///
/// # Errors
/// The sentence: root is missing, or a program with its Debian package.
pub fn available() -> Result<(), String> {
    check().map_err(|e| e.to_string())
}

/// Whether a test that needs beds shall run. As root it shall, and whatever is
/// missing makes it fail; any other user gets a note on standard error. Most
/// tests get both at once, the answer and the bed:
///
/// ```no_run
/// let Some(bed) = testbed::Pair::builder().for_test() else { return };
/// ```
#[must_use]
pub fn runs_here() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {}", Error::NotRoot);
    }
    root
}

pub(crate) fn check() -> Result<(), Error> {
    check_in(rustix::process::geteuid().is_root(), &search_path())
}

fn check_in(root: bool, path: &[PathBuf]) -> Result<(), Error> {
    if !root {
        return Err(Error::NotRoot);
    }
    PACKAGES.iter().try_for_each(|(tool, _)| find(tool, path).map(drop))
}

/// A command for one of our tools, found also where root's `PATH` lacks sbin.
///
/// # Errors
/// [`Error::MissingTool`].
pub(crate) fn command(tool: &'static str) -> Result<Command, Error> {
    find(tool, &search_path()).map(Command::new)
}

/// Runs a tool to its end with `input` on standard input; returns its output.
pub(crate) fn run(tool: &'static str, args: &[&str], input: &str) -> Result<String, Error> {
    let typed = || format!("{tool} {}", args.join(" "));
    let mut command = command(tool)?;
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Error::io(format!("start `{}`", typed())))?;
    if let Some(mut stdin) = child.stdin.take() {
        // a tool that stops early says why on standard error
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(Error::io(format!("wait for `{}`", typed())))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(explain(typed(), &String::from_utf8_lossy(&output.stderr), input))
}

/// Turns a tool's complaint into an error; known ones get their remedy.
fn explain(command: String, stderr: &str, input: &str) -> Error {
    if stderr.contains("/run/netns") && (stderr.contains("not permitted") || stderr.contains("denied")) {
        return Error::NotHost;
    }
    let kernel = |feature, config, module, otherwise| Error::Kernel { feature, config, module, otherwise };
    if stderr.contains("qdisc kind is unknown") {
        return kernel("token bucket queue", "CONFIG_NET_SCH_TBF", "sch_tbf", "build the bed without rates");
    }
    if stderr.contains("Unknown device type") {
        return kernel("virtual Ethernet pair", "CONFIG_VETH", "veth", "use a kernel that has it");
    }
    if command.contains("nft ") && (stderr.contains("not supported") || stderr.contains("Unable to initialize")) {
        return kernel("packet filter at ingress", "CONFIG_NF_TABLES_NETDEV", "nf_tables", "leave out holes and loss");
    }
    let lines: Vec<&str> = stderr.lines().filter(|l| !l.trim().is_empty()).take(3).collect();
    let mut message = if lines.is_empty() { "it gave no reason".to_owned() } else { lines.join("; ") };
    // batches say only which line they stopped at
    let line = stderr.split("Command failed -:").nth(1).and_then(|rest| rest.lines().next());
    if let Some(text) = line.and_then(|n| n.trim().parse::<usize>().ok()).and_then(|n| input.lines().nth(n - 1)) {
        message.push_str(&format!(" (at `{text}`)"));
    }
    Error::Tool { command, message }
}

fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)).collect()
}

fn find(tool: &'static str, path: &[PathBuf]) -> Result<PathBuf, Error> {
    let is_file = |p: &PathBuf| Path::is_file(p);
    path.iter().map(|dir| dir.join(OsStr::new(tool))).find(is_file).ok_or_else(|| {
        let package = PACKAGES.iter().find(|(name, _)| *name == tool).map_or(tool, |(_, package)| package);
        Error::MissingTool { tool, package }
    })
}

/// Each program with its Debian package.
const PACKAGES: [(&str, &str); 4] =
    [("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables"), ("ethtool", "ethtool")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_says_what_is_missing() {
        let text = check_in(false, &[]).unwrap_err().to_string();
        assert!(text.contains("root") && text.contains("sudo"), "{text}");
        let text = check_in(true, &[PathBuf::from("/nonexistent")]).unwrap_err().to_string();
        assert!(text.contains("`ip`") && text.contains("apt-get install iproute2"), "{text}");
        let text = find("nft", &[]).unwrap_err().to_string();
        assert!(text.contains("apt-get install nftables"), "{text}");
    }

    #[test]
    fn explain_names_the_kernel_option() {
        let tbf = explain("tc -batch -".into(), "Error: Specified qdisc kind is unknown.\n", "").to_string();
        assert!(tbf.contains("CONFIG_NET_SCH_TBF") && tbf.contains("modprobe sch_tbf"), "{tbf}");
        let veth = explain("ip -batch -".into(), "Error: Unknown device type.\n", "").to_string();
        assert!(veth.contains("CONFIG_VETH"), "{veth}");
        let nft =
            explain("ip netns exec x nft -f -".into(), "Error: Could not process rule: Operation not supported", "");
        assert!(nft.to_string().contains("CONFIG_NF_TABLES"), "{nft}");
    }

    #[test]
    fn explain_knows_a_root_that_is_none() {
        let stderr = "mount --make-shared /run/netns failed: Operation not permitted\nCommand failed -:1\n";
        let text = explain("ip -batch -".into(), stderr, "netns add x\n").to_string();
        assert!(text.contains("user namespace") && text.contains("as root of the host"), "{text}");
    }

    #[test]
    fn explain_quotes_the_line_of_a_batch() {
        let stderr = "RTNETLINK answers: File exists\nCommand failed -:2\n";
        let text = explain("ip -batch -".into(), stderr, "link set lo up\nroute add default\n").to_string();
        assert!(text.contains("File exists") && text.contains("at `route add default`"), "{text}");
    }
}
