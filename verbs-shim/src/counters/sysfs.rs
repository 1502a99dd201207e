//! A tree of files as the kernel would show an EFA device in `/sys`, for exporters and for programs that look there.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::Path;

use srd_core::card::Gid;

use super::{DEVICE, PORT, Values, pci};
use crate::config::NicConfig;
use crate::limit::may_write;
use crate::link::Link;

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
    /// Its address; the port is 0 before the card is open, unless one was asked for.
    pub addr: Option<SocketAddr>,
    /// Its processing units.
    pub units: u16,
}

impl From<&NicConfig> for Identity {
    fn from(config: &NicConfig) -> Identity {
        let profile = &config.card.profile;
        let (part_id, gbps, fw_ver) = (profile.part_id, profile.gbps, profile.fw_ver);
        let (addr, units) = (Some(config.addr), config.units);
        Identity { device: config.name.clone(), part_id, gbps, fw_ver, addr, units }
    }
}

impl Identity {
    /// Zero if it has none yet.
    pub(super) fn gid(&self) -> Gid {
        self.addr.and_then(|addr| Gid::with_units(addr, self.units).ok()).unwrap_or_default()
    }
}

/// The GUID of a device: from its address, because it is asked for before a card is opened.
pub fn node_guid(addr: IpAddr, index: usize) -> [u8; 8] {
    let mut bytes = [0x02, 0x53, 0x52, 0x44, 0, 0, 0, 0];
    match addr {
        IpAddr::V4(ip) => bytes[4..].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[1..].copy_from_slice(&ip.octets()[9..]),
    }
    bytes[3] ^= index as u8;
    bytes
}

/// How long the kernel keeps counters before it asks the device again, in milliseconds.
const LIFESPAN: &str = "10";
/// Where `srd run --device-files` has such a tree for its program: in a class of its own, where nobody looks. Cards that run
/// there keep it true.
pub const SHOWN: &str = "/sys/class/srd";
/// The only port, in the directory of its device.
const PORT_1: &str = "ports/1";

/// Writes the tree below `root`, or brings it up to date: one device of it, without its counters. The PCI address is that of a
/// network interface of this machine, or else `0000:BB:06.0`, where BB is the `index` of the device.
///
/// ```text
/// class/infiniband_verbs/{abi_version, uverbs0/abi_version, uverbs0/ibdev}
/// class/infiniband/DEVICE/{node_type, node_guid, sys_image_guid, node_desc, fw_ver}
/// class/infiniband/DEVICE/device -> ../../../devices/0000:00:06.0
/// class/infiniband/DEVICE/ports/1/{state, phys_state, link_layer, rate, cap_mask, gids/0, pkeys/0}
/// class/infiniband/DEVICE/ports/1/{lid, lid_mask_count, sm_lid, sm_sl}
/// devices/0000:00:06.0/{vendor, device, driver -> ../../bus/pci/drivers/efa}
/// ```
///
/// # Errors
/// Something cannot be written.
pub fn write_tree(root: &Path, index: usize, identity: &Identity) -> io::Result<()> {
    let Identity { device, part_id, gbps, fw_ver, addr, .. } = identity;
    let class = root.join("class/infiniband").join(device);
    // One that is there stays where it is.
    let there = fs::read_link(class.join("device")).ok();
    let place = there.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let is_taken = |place: &str| root.join("devices").join(place).exists();
    let pci = format!("devices/{}", place.unwrap_or_else(|| pci::address(addr.map(|addr| addr.ip()), index, is_taken)));
    let port = class.join(PORT_1);
    let put = |path: &Path, text: &str| put(path, text);

    let verbs = root.join("class/infiniband_verbs");
    put(&verbs.join("abi_version"), "6")?;
    put(&verbs.join(format!("uverbs{index}/abi_version")), "1")?;
    put(&verbs.join(format!("uverbs{index}/ibdev")), device)?;
    fs::create_dir_all(root.join("bus/pci/drivers/efa"))?;
    put(&root.join(&pci).join("vendor"), "0x1d0f")?;
    put(&root.join(&pci).join("device"), &format!("{part_id:#x}"))?;
    link("../../bus/pci/drivers/efa", &root.join(&pci).join("driver"))?;

    put(&class.join("node_type"), "7: unspecified")?;
    let guid = addr.map(|addr| node_guid(addr.ip(), index)).unwrap_or_default();
    put(&class.join("node_guid"), &groups(&guid))?;
    // EFA's driver sets neither of these.
    put(&class.join("sys_image_guid"), &groups(&[0; 8]))?;
    put(&class.join("node_desc"), "")?;
    put(&class.join("fw_ver"), &fw_ver.map(|n| n.to_string()).join("."))?;
    link(&format!("../../../{pci}"), &class.join("device"))?;
    put(&port.join("state"), "4: ACTIVE")?;
    put(&port.join("phys_state"), "5: LinkUp")?;
    put(&port.join("link_layer"), "Unspecified")?;
    put(&port.join("rate"), &Link::of(*gbps).to_string())?;

    // There is no subnet manager, and no local identifier.
    for (name, text) in
        [("lid", "0x0"), ("lid_mask_count", "1"), ("sm_lid", "0x0"), ("sm_sl", "0"), ("cap_mask", "0x00000000")]
    {
        put(&port.join(name), text)?;
    }
    put(&port.join("pkeys/0"), "0xffff")?;
    write_gid(root, device, identity.gid())
}

/// Writes the counters of a device into the tree: `hw_counters/*` of the device and of its port.
///
/// # Errors
/// They cannot be written.
pub fn write_counters(root: &Path, device: &str, values: &Values) -> io::Result<()> {
    let class = root.join("class/infiniband").join(device);
    let port = class.join(PORT_1);
    for (dir, names, numbers) in [(port, &PORT[..], &values.port[..]), (class, &DEVICE[..], &values.device[..])] {
        let dir = dir.join("hw_counters");
        put(&dir.join("lifespan"), LIFESPAN)?;
        for (name, number) in names.iter().zip(numbers) {
            put(&dir.join(name), &number.to_string())?;
        }
    }
    Ok(())
}

/// Whether the tree has a device of this name.
pub(super) fn has(root: &Path, device: &str) -> bool {
    root.join("class/infiniband").join(device).exists()
}

/// Writes the GID of a device into the tree, which is not known before its card is open.
///
/// # Errors
/// It cannot be written.
pub fn write_gid(root: &Path, device: &str, gid: Gid) -> io::Result<()> {
    put(&root.join("class/infiniband").join(device).join(PORT_1).join("gids/0"), &groups(&gid.0))
}

/// Two bytes each, in full, as the kernel writes GUIDs and GIDs.
fn groups(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    pairs.join(":")
}

/// Writes a short text in one go over what is there, so that whoever reads meanwhile sees one or the other.
fn put(path: &Path, text: &str) -> io::Result<()> {
    may_write()?;
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
