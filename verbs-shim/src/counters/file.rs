//! A file of counters: text, one `name value` per line, after a first line that says what it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::OFlag;

use super::Values;
use super::sysfs::Identity;
use crate::limit::{MAX_FILE, may_write};

/// First line of every file.
const TITLE: &str = "srd counters 1";
/// The end of file names.
pub(super) const SUFFIX: &str = ".counters";
/// The beginning of the names of files with what was counted before.
pub(super) const BEFORE: &str = "before-";

/// What a process publishes of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The process; 0 for what was counted by processes that are no more.
    pub pid: u32,
    /// When it started, in clock ticks since the host did: a process that got the number later started later.
    pub started: u64,
    /// The name space that its number belongs to.
    pub namespace: String,
    /// What it runs.
    pub command: String,
    /// The device.
    pub identity: Identity,
    /// The counters.
    pub values: Values,
}

/// What has become of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Alive,
    Dead,
    /// It lives in another name space, such as that of another container, if it lives.
    Unknown,
}

impl Record {
    pub(super) fn of_this_process(identity: Identity) -> io::Result<Record> {
        let pid = std::process::id();
        let command = fs::read("/proc/self/comm").unwrap_or_default();
        Ok(Record {
            pid,
            started: started(pid)?,
            namespace: namespace(),
            command: plain(String::from_utf8_lossy(command.strip_suffix(b"\n").unwrap_or(&command)).as_ref()),
            identity,
            values: Values::default(),
        })
    }

    /// What was counted before, on a device.
    pub(super) fn before(identity: Identity) -> Record {
        Record {
            pid: 0,
            started: 0,
            namespace: String::new(),
            command: String::new(),
            identity,
            values: Values::default(),
        }
    }

    pub(super) fn file_name(&self) -> String {
        let Record { pid, namespace, identity: Identity { device, .. }, .. } = self;
        if *pid == 0 {
            return format!("{BEFORE}{device}{SUFFIX}");
        }
        // Containers that share a directory have processes of the same number, many of them the first.
        let namespace: String = namespace.chars().filter(char::is_ascii_digit).collect();
        format!("{pid}-{namespace}-{device}{SUFFIX}")
    }

    pub(super) fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }

    pub(super) fn fate(&self) -> Fate {
        if self.pid == 0 {
            return Fate::Alive;
        }
        if self.namespace != namespace() {
            return Fate::Unknown;
        }
        match started(self.pid) {
            Ok(started) if started == self.started => Fate::Alive,
            _ => Fate::Dead,
        }
    }

    /// Replaces a file as a whole.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        may_write()?;
        let Record { pid, started, namespace, command, identity, values } = self;
        let Identity { device, part_id, gbps, fw_ver, addr, units } = identity;
        let fw = fw_ver.map(|n| n.to_string()).join(".");
        let mut text = format!("{TITLE}\npid {pid}\nstarted {started}\nnamespace {namespace}\ncommand {command}\n");
        text += &format!("device {device}\npart_id {part_id}\ngbps {gbps}\nfw_ver {fw}\nunits {units}\n");
        if let Some(addr) = addr {
            text += &format!("addr {addr}\n");
        }
        for (name, value) in values.named() {
            text += &format!("{name} {value}\n");
        }
        let fresh = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&fresh, path));
        // Where there is no room, nothing is left behind that would take some.
        written.inspect_err(|_| _ = fs::remove_file(&fresh))
    }

    /// Leaves what is at `path` to whoever adds up next, as if the process were no more. It may begin anew there.
    pub(super) fn leave(&self, path: &Path) -> io::Result<()> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        // No process started then.
        let left = Record { started: 0, ..self.clone() };
        left.write(&path.with_extension(format!("{nanos:x}{SUFFIX}")))?;
        fs::remove_file(path)
    }

    /// Reads a file; whatever is not one, in whole, is an error.
    pub(super) fn read(path: &Path) -> io::Result<Record> {
        // Neither a link that leads elsewhere nor a pipe that never ends.
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("no file"));
        }
        let mut text = String::new();
        file.take(MAX_FILE).read_to_string(&mut text)?;
        Record::parse(&text).ok_or_else(|| io::Error::other("no file of counters"))
    }

    fn parse(text: &str) -> Option<Record> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return None;
        }
        let mut record = Record::before(Identity::default());
        let mut counters = 0;
        for line in lines {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            match name {
                "pid" => record.pid = value.parse().ok()?,
                "started" => record.started = value.parse().ok()?,
                "namespace" => record.namespace = value.to_owned(),
                "command" => record.command = plain(value),
                "device" => record.identity.device = Some(value).filter(|v| is_device_name(v))?.to_owned(),
                "part_id" => record.identity.part_id = value.parse().ok()?,
                "gbps" => record.identity.gbps = value.parse().ok()?,
                "fw_ver" => {
                    let numbers: Vec<u8> = value.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
                    record.identity.fw_ver = numbers.try_into().ok()?;
                }
                "units" => record.identity.units = value.parse().ok()?,
                "addr" => record.identity.addr = Some(value.parse().ok()?),
                // Names that a later version adds are skipped.
                _ => {
                    if let Some(counter) = record.values.get_mut(name) {
                        *counter = value.parse().ok()?;
                        counters += 1;
                    }
                }
            }
        }
        let whole = counters == super::PORT.len() + super::DEVICE.len() && !record.identity.device.is_empty();
        whole.then_some(record)
    }
}

/// Names of devices become names of directories.
fn is_device_name(text: &str) -> bool {
    (1..=63).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// What a process calls itself, as text that may be shown: it has no line ends, and nothing that a terminal would obey.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// When a process started (`starttime` in `proc(5)`).
fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the command may contain anything; what follows its last parenthesis are numbers.
    let number = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse().ok());
    number.ok_or_else(|| io::Error::other("/proc/PID/stat is not as expected"))
}

/// The name space of process numbers that this process lives in.
fn namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|l| l.display().to_string()).unwrap_or_default()
}
