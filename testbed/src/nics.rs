//! Two NICs with a cable between them, in place of a virtual cable.
//!
//! Named by `SRD_TESTBED_NICS`, a pair is made of them: the tests that are written for pairs then show what drivers do over
//! real devices. There is one such cable, so pairs are built one after the other. While a pair exists, its hosts have the
//! NICs; the kernel gives them back, under whatever name, when the hosts are gone.

use std::fs::{self, File};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::{Error, tools};

/// Two devices as `/sys/class/net/*/device` names them, at the bus: `0000:03:00.0 0000:03:00.1`, or `virtio2 virtio3`.
const VARIABLE: &str = "SRD_TESTBED_NICS";

/// The kernel gives devices back some time after a namespace is gone.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// The NICs, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct Nics {
    devices: [String; 2],
    _turn: File,
}

impl Nics {
    /// Waits for its turn, if the environment names NICs.
    pub(crate) fn take() -> Result<Option<Self>, Error> {
        let Ok(text) = std::env::var(VARIABLE) else { return Ok(None) };
        let devices: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let devices = devices.try_into().map_err(|_| Error::invalid(format!("{VARIABLE} must name two devices")))?;
        let path = std::env::temp_dir().join("srd-testbed-nics.lock");
        let turn = File::create(&path).map_err(Error::io(format!("create {}", path.display())))?;
        flock(&turn, FlockOperation::LockExclusive).map_err(|e| Error::io("wait for the NICs")(e.into()))?;
        Ok(Some(Self { devices, _turn: turn }))
    }

    /// Gives each its number of queues, and returns their names of the moment. Waits until both are there.
    pub(crate) fn prepare(&self, queues: u32) -> Result<[String; 2], Error> {
        let end = Instant::now() + PATIENCE;
        let names = loop {
            match [0, 1].map(|which| interface(&self.devices[which])) {
                [Some(a), Some(b)] => break [a, b],
                _ if Instant::now() < end => thread::sleep(PAUSE),
                _ => return Err(Error::invalid(format!("{VARIABLE}: {} are not here", self.devices.join(" and ")))),
            }
        };
        for name in &names {
            if channels(name)? != Some(queues) {
                tools::run("ethtool", &["-L", name, "combined", &queues.to_string()], "")?;
            }
        }
        Ok(names)
    }
}

/// The interface of a device.
fn interface(device: &str) -> Option<String> {
    let interfaces = fs::read_dir("/sys/class/net").ok()?.flatten();
    let mut of_device =
        interfaces.filter(|i| fs::read_link(i.path().join("device")).is_ok_and(|d| d.ends_with(device)));
    of_device.next()?.file_name().into_string().ok()
}

/// How many queues an interface uses now, for both directions.
fn channels(name: &str) -> Result<Option<u32>, Error> {
    let text = tools::run("ethtool", &["-l", name], "")?;
    let now = text.lines().rev().find_map(|line| line.strip_prefix("Combined:"));
    Ok(now.and_then(|count| count.trim().parse().ok()))
}
