//! A tree of files as the kernel would show an EFA device in `/sys`, for exporters and for programs that look there.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::Path;

use super::{DEVICE, PORT, Values};
use crate::link::Link;
use crate::nic::NicConfig;

/// What a device says of itself in the tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Its name.
    pub device: String,
    /// PCI device id.
    pub part_id: u32,
    /// Nominal speed in Gbit/s.
    pub gbps: u32,
    /// Firmware version.
    pub fw_ver: [u8; 4],
}

impl From<&NicConfig> for Identity {
    fn from(config: &NicConfig) -> Identity {
        let profile = &config.card.profile;
        let (part_id, gbps, fw_ver) = (profile.part_id, profile.gbps, profile.fw_ver);
        Identity { device: config.name.clone(), part_id, gbps, fw_ver }
    }
}

/// How long the kernel keeps counters before it asks the device again, in milliseconds.
const LIFESPAN: &str = "10";

/// Writes the tree below `root`, or brings it up to date: one device of it. The PCI address is `0000:BB:06.0`, where BB is the
/// `index` of the device.
///
/// ```text
/// class/infiniband_verbs/abi_version
/// class/infiniband/DEVICE/{node_type, fw_ver, hw_counters/*, device -> ../../../devices/0000:00:06.0}
/// class/infiniband/DEVICE/ports/1/{state, phys_state, link_layer, rate, hw_counters/*}
/// devices/0000:00:06.0/{vendor, device, driver -> ../../bus/pci/drivers/efa}
/// ```
///
/// # Errors
/// Something cannot be written.
pub fn write_tree(root: &Path, index: usize, identity: &Identity, values: &Values) -> io::Result<()> {
    let Identity { device, part_id, gbps, fw_ver } = identity;
    let pci = format!("devices/0000:{index:02x}:06.0");
    let class = root.join("class/infiniband").join(device);
    let port = class.join("ports/1");
    let put = |path: &Path, text: &str| put(path, text);

    put(&root.join("class/infiniband_verbs/abi_version"), "6")?;
    fs::create_dir_all(root.join("bus/pci/drivers/efa"))?;
    put(&root.join(&pci).join("vendor"), "0x1d0f")?;
    put(&root.join(&pci).join("device"), &format!("{part_id:#x}"))?;
    link("../../bus/pci/drivers/efa", &root.join(&pci).join("driver"))?;

    put(&class.join("node_type"), "7: unspecified")?;
    put(&class.join("fw_ver"), &fw_ver.map(|n| n.to_string()).join("."))?;
    link(&format!("../../../{pci}"), &class.join("device"))?;
    put(&port.join("state"), "4: ACTIVE")?;
    put(&port.join("phys_state"), "5: LinkUp")?;
    put(&port.join("link_layer"), "Unspecified")?;
    put(&port.join("rate"), &Link::of(*gbps).to_string())?;

    for (dir, names, numbers) in [(port, &PORT[..], &values.port[..]), (class, &DEVICE[..], &values.device[..])] {
        let dir = dir.join("hw_counters");
        put(&dir.join("lifespan"), LIFESPAN)?;
        for (name, number) in names.iter().zip(numbers) {
            put(&dir.join(name), &number.to_string())?;
        }
    }
    Ok(())
}

/// Writes a short text in one go over what is there, so that whoever reads meanwhile sees one or the other.
fn put(path: &Path, text: &str) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let line = format!("{text}\n");
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path)?;
    file.write_all(line.as_bytes())?;
    file.set_len(line.len() as u64)
}

fn link(target: &str, path: &Path) -> io::Result<()> {
    match symlink(target, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
