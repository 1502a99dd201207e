//! Tests of counters that others read.

use std::fs;
use std::process::{Command, Stdio};

use crate::repeatable::repeatable;
use nix::fcntl::FlockArg;
use proptest::prelude::*;

use super::*;

fn identity() -> Identity {
    let (device, addr) = ("rdmap0s6".into(), "127.0.0.1:9".parse().ok());
    Identity { device, part_id: 0xefa1, gbps: 100, fw_ver: [0, 0, 1, 1], addr, units: 1 }
}

fn publisher(dir: &Path) -> Publisher {
    Publisher::new(dir, identity()).unwrap()
}

fn values(n: u64) -> Values {
    let mut values = Values::default();
    *values.get_mut("tx_bytes").unwrap() = n;
    *values.get_mut("submitted_cmds").unwrap() = n + 1;
    values
}

fn only(registry: &Registry) -> Device {
    let mut devices = registry.devices();
    assert_eq!(devices.len(), 1);
    devices.remove(0)
}

#[test]
fn readable_while_it_runs_and_summed_after_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new([dir.path()]);
    assert_eq!(registry.devices(), []);
    let mut running = publisher(dir.path());
    running.publish(&values(5)).unwrap();
    running.publish(&values(7)).unwrap();
    let device = only(&registry);
    assert_eq!((device.identity, device.total), (identity(), values(7)));
    assert_eq!(
        device.processes.iter().map(|r| (r.pid, r.values)).collect::<Vec<_>>(),
        [(std::process::id(), values(7))]
    );
    drop(running);
    let device = only(&registry);
    assert_eq!((device.processes.len(), device.total), (0, values(7)));
    let mut next = publisher(dir.path());
    next.publish(&values(1)).unwrap();
    let total = only(&registry).total;
    assert_eq!((total.port[0], total.device[0]), (8, 10));
}

#[test]
fn nobody_waits_for_a_process_that_was_stopped_while_it_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new([dir.path()]);
    let at_it = registry::lock(dir.path(), FlockArg::LockExclusive).unwrap();
    // A device that is closed, opened again and closed again.
    for n in [5, 6] {
        let mut running = publisher(dir.path());
        running.publish(&values(n)).unwrap();
        assert_eq!(only(&registry).processes.len(), 1);
        drop(running);
        assert_eq!(only(&registry).processes, []);
    }
    assert_eq!(only(&registry).total.port[0], 11);
    drop(at_it);
    assert_eq!(only(&registry).total.port[0], 11);
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "the sums and the lock, and nothing else: {names:?}");
}

#[test]
fn commands_are_shown_as_one_line_that_no_terminal_obeys() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = publisher(dir.path());
    running.publish(&values(5)).unwrap();
    // A file of another user, who may write what he likes.
    let text = fs::read_to_string(&running.path).unwrap();
    let text = text.replace(&format!("command {}\n", running.record.command), "command a\x1b[2Jb\u{9b}c\n");
    fs::write(&running.path, text).unwrap();
    assert_eq!(only(&Registry::new([dir.path()])).processes[0].command, "a?[2Jb?c");
}

#[test]
fn dead_processes_are_swept_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Registry::new([dir.path()]);
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut publisher = publisher(dir.path());
    let mut record = publisher.record.clone();
    publisher.publish(&values(1)).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    record.pid = child.id();
    record.started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    record.values = values(10);
    record.write(&dir.path().join(record.file_name())).unwrap();
    assert_eq!(only(&registry).processes.len(), 2);

    // The same number, but another process.
    record.started += 1;
    record.write(&dir.path().join(record.file_name())).unwrap();
    let device = only(&registry);
    assert_eq!((device.processes.len(), device.total.port[0]), (1, 11));
    assert!(!dir.path().join(record.file_name()).exists());

    record.started -= 1;
    record.write(&dir.path().join(record.file_name())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((only(&registry).processes.len(), only(&registry).total.port[0]), (1, 21));
}

#[test]
fn processes_of_other_name_spaces_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = publisher(dir.path()).record.clone();
    (record.namespace, record.pid, record.values) = ("pid:[1]".into(), u32::MAX, values(3));
    record.write(&dir.path().join(record.file_name())).unwrap();
    let device = only(&Registry::new([dir.path()]));
    assert_eq!((device.processes.len(), device.total.port[0]), (1, 3));
    assert!(dir.path().join(record.file_name()).exists());
}

#[test]
fn one_number_in_two_name_spaces_is_two_processes() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = publisher(dir.path());
    running.publish(&values(5)).unwrap();
    let other = Record { namespace: "pid:[1]".into(), values: values(3), ..running.record.clone() };
    other.write(&dir.path().join(other.file_name())).unwrap();
    let registry = Registry::new([dir.path()]);
    let device = only(&registry);
    assert_eq!((device.processes.len(), device.total.port[0]), (2, 8));
    drop(running);
    let device = only(&registry);
    assert_eq!((device.processes, device.total.port[0]), (vec![other], 8));
}

#[test]
fn what_is_no_whole_file_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let running = publisher(dir.path());
    let text = fs::read_to_string(&running.path).unwrap();
    for (name, text) in
        [("1-a.counters", ""), ("2-a.counters", &text[..text.len() / 2]), ("3-a.counters", "srd counters 9\n")]
    {
        fs::write(dir.path().join(name), text).unwrap();
    }
    fs::write(dir.path().join("4-a.counters"), text.replace("rdmap0s6", "../../etc")).unwrap();
    fs::write(dir.path().join("5-a.counters"), vec![b'x'; 1 << 20]).unwrap();
    nix::unistd::mkfifo(&dir.path().join("6-a.counters"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink(&running.path, dir.path().join("7-a.counters")).unwrap();
    assert_eq!(only(&Registry::new([dir.path()])).processes.len(), 1);
}

#[test]
fn publishing_recovers_when_its_file_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = publisher(dir.path());
    fs::remove_file(&running.path).unwrap();
    running.publish(&values(2)).unwrap();
    assert_eq!(only(&Registry::new([dir.path()])).total, values(2));
}

#[test]
fn what_cannot_be_published_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = publisher(dir.path());
    fs::remove_file(&running.path).unwrap();
    fs::create_dir(&running.path).unwrap();
    running.publish(&values(2)).unwrap_err();
    let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(left.filter(|path| path.extension().is_some_and(|end| end == "new")).count(), 0);
}

#[test]
fn nothing_is_written_in_the_name_of_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = publisher(dir.path());
    running.record.pid += 1;
    running.publish(&values(2)).unwrap();
    assert_eq!(only(&Registry::new([dir.path()])).total, Values::default());
}

#[test]
fn the_tree_has_all_counters_and_is_refreshed_in_place() {
    let dir = tempfile::tempdir().unwrap();
    for n in [12345, 7] {
        write_tree(dir.path(), 0, &identity()).unwrap();
        write_counters(dir.path(), "rdmap0s6", &values(n)).unwrap();
        let class = dir.path().join("class/infiniband/rdmap0s6");
        let read = |path: &str| fs::read_to_string(class.join(path)).unwrap();
        assert_eq!(read("ports/1/hw_counters/tx_bytes"), format!("{n}\n"));
        assert_eq!(read("hw_counters/submitted_cmds"), format!("{}\n", n + 1));
        assert!(PORT.iter().all(|c| read(&format!("ports/1/hw_counters/{c}")).trim_end().parse::<u64>().is_ok()));
        assert!(DEVICE.iter().all(|c| read(&format!("hw_counters/{c}")).trim_end().parse::<u64>().is_ok()));
        assert_eq!((read("device/vendor"), read("device/device")), ("0x1d0f\n".into(), "0xefa1\n".into()));
        for (file, text) in [
            ("node_guid", "0253:5244:7f00:0001"),
            ("sys_image_guid", "0000:0000:0000:0000"),
            ("node_desc", ""),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/gids/0", "fe80:0000:0000:0000:0200:7f00:0001:0009"),
            ("ports/1/pkeys/0", "0xffff"),
            ("ports/1/lid", "0x0"),
            ("../../infiniband_verbs/uverbs0/ibdev", "rdmap0s6"),
        ] {
            assert_eq!(read(file), format!("{text}\n"), "{file}");
        }
        // What libfabric looks at.
        let device = fs::canonicalize(class.join("device")).unwrap();
        let real = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten().map(|entry| entry.file_name());
        let real: Vec<_> = real.collect();
        let place = device.file_name().unwrap();
        assert!(if real.is_empty() { place == "0000:00:06.0" } else { real.iter().any(|r| r == place) }, "{device:?}");
        assert!(fs::canonicalize(class.join("device/driver")).unwrap().ends_with("drivers/efa"));
    }
}

#[test]
fn the_files_that_a_program_is_shown_have_what_all_processes_counted() {
    let (dir, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |file: &str| tree.path().join("class/infiniband/rdmap0s6/ports/1").join(file);
    let read = |file: &str| fs::read_to_string(at(file)).unwrap();
    let mut running = publisher(dir.path());
    running.tree = tree.path().into();
    running.publish(&values(1)).unwrap();
    assert!(!at("").exists(), "nobody has asked for such files");

    write_tree(tree.path(), 0, &Identity { addr: None, ..identity() }).unwrap();
    let mut other = Record { pid: 1, values: values(40), ..running.record.clone() };
    other.write(&dir.path().join(other.file_name())).unwrap();
    running.publish(&values(2)).unwrap();
    assert_eq!(read("hw_counters/tx_bytes"), "42\n");
    assert_eq!(read("gids/0"), "fe80:0000:0000:0000:0200:7f00:0001:0009\n");
    other.identity.device = "rdmap1s6".into();
    other.write(&dir.path().join(other.file_name())).unwrap();
    running.publish(&values(3)).unwrap();
    assert_eq!(read("hw_counters/tx_bytes"), "43\n", "of another device");

    let at_it = registry::lock(dir.path(), FlockArg::LockExclusive).unwrap();
    let refused = running.publish(&values(4)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
    drop(at_it);
    running.publish(&values(4)).unwrap();
    assert_eq!(read("hw_counters/tx_bytes"), "44\n");
}

#[test]
fn devices_of_one_tree_are_in_different_places() {
    let dir = tempfile::tempdir().unwrap();
    let device = |name: &str| fs::canonicalize(dir.path().join("class/infiniband").join(name).join("device")).unwrap();
    let names = ["rdmap0s6", "rdmap1s6"];
    for _ in 0..2 {
        for (index, name) in names.into_iter().enumerate() {
            write_tree(dir.path(), index, &Identity { device: name.into(), ..identity() }).unwrap();
        }
    }
    let first = pci::address(None, 0, |_| false);
    let second = pci::address(None, 1, |place| place == first);
    let places = names.map(|name| device(name).file_name().unwrap().to_owned());
    // A machine with one place has room for one.
    assert_eq!(places[0] == places[1], first == second, "{places:?}");
    let made = fs::read_dir(dir.path().join("devices")).unwrap().count();
    assert_eq!(made, if first == second { 1 } else { 2 }, "they have moved");
}

#[test]
fn every_counter_of_a_card_has_its_place() {
    use srd_core::Stats;
    use srd_core::card::{DeviceCounters, PortCounters};

    let transport = Stats { tx_packets: 10, tx_bytes: 5000, retransmits: 2, retransmit_bytes: 900, ..Stats::default() };
    let port = PortCounters { send_wrs: 3, ..PortCounters::default() };
    let device = DeviceCounters { create_ah_err: 4, ..DeviceCounters::default() };
    let mut got = Values::from(&NicCounters { port, device, transport });
    for (name, want) in
        [("tx_pkts", 10), ("tx_bytes", 5000), ("retrans_pkts", 2), ("retrans_bytes", 900), ("send_wrs", 3)]
    {
        assert_eq!(got.get_mut(name).copied(), Some(want), "{name}");
    }
    assert_eq!(got.get_mut("create_ah_err").copied(), Some(4));
    for (name, _) in port.named().chain(device.named()) {
        assert!(got.get_mut(name).is_some(), "{name} is lost");
    }
}

proptest! {
    #![proptest_config(repeatable())]

    #[test]
    fn records_come_back(pid: u32, started: u64, numbers: [u64; 34], command in "[ -~]{0,15}") {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record { pid, started, command, ..publisher(dir.path()).record.clone() };
        record.values.port.copy_from_slice(&numbers[..22]);
        record.values.device.copy_from_slice(&numbers[22..]);
        let path = dir.path().join("file");
        record.write(&path).unwrap();
        prop_assert_eq!(Record::read(&path).unwrap(), record);
    }
}
