//! Tests of options as a whole.

use std::collections::BTreeMap;

use srd_core::card::profile::caps;

use super::*;

fn parse(values: &[(&str, &str)]) -> Result<Options, OptionError> {
    let values: BTreeMap<_, _> = values.iter().copied().collect();
    assert!(values.keys().all(|name| find(name).is_some()));
    Options::parse(|option| Ok(values.get(option.name).map(|v| (Source::Flag, v.to_string()))))
}

#[test]
fn names_are_unique_and_texts_are_whole() {
    let names: std::collections::BTreeSet<_> = OPTIONS.iter().map(|o| o.name).collect();
    assert_eq!(names.len(), OPTIONS.len());
    for option in OPTIONS {
        assert!(option.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{option:?}");
        assert!(!option.help.ends_with('.') && !option.help.is_empty() && !option.default.is_empty(), "{option:?}");
    }
    assert_eq!(find("peer-timeout").map(Opt::variable).as_deref(), Some("SRD_PEER_TIMEOUT"));
}

#[test]
fn nothing_said_one_device_that_works() {
    let devices = parse(&[]).unwrap().devices().unwrap();
    let [device] = &devices[..] else { panic!("{} devices", devices.len()) };
    assert_eq!((device.name.as_str(), device.addr.port()), ("rdmap0s6", 0));
    assert_eq!(device.card, CardOptions::default());
    assert!(device.faults.is_none() && device.seed.is_none());
    assert_eq!((device.transport.paths, device.udp.source_ports), (16, 64));
}

#[test]
fn everything_arrives_in_the_devices() {
    let options = parse(&[
        ("addr", "127.0.0.1,::1"),
        ("devices", "3"),
        ("paths", "32"),
        ("ports", "40000-49999"),
        ("mtu", "1500"),
        ("rate", "8G"),
        ("peer-timeout", "2s"),
        ("wait", "spin"),
        ("profile", "efa3"),
        ("max-ah", "64"),
        ("caps", "read,rnr-retry"),
        ("strict-peers", "off"),
        ("fault", "corrupt=1%,rnr=2%"),
        ("seed", "7"),
    ])
    .unwrap();
    let devices = options.devices().unwrap();
    let names: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.addr.to_string())).collect();
    let want = [("rdmap0s6", "127.0.0.1:0"), ("rdmap1s6", "[::1]:0"), ("rdmap2s6", "127.0.0.1:0")];
    assert_eq!(names, want.map(|(name, addr)| (name, addr.to_owned())));
    let (v4, v6) = (&devices[0], &devices[1]);
    assert_eq!([v4.transport.max_datagram, v6.transport.max_datagram], [1472, 1452]);
    assert_eq!((v4.transport.paths, v4.transport.path_pool, v4.udp.source_ports), (32, 128, 128));
    assert_eq!(
        (v4.udp.source_port_range.clone(), v4.udp.mtu, v4.udp.wait),
        (Some(40000..=49999), Some(1500), WaitMode::Spin)
    );
    assert_eq!((v4.transport.link_rate, v4.transport.peer_timeout), (Some(1_000_000_000), Span::from_secs(2)));
    let peers = |values: &[(&str, &str)]| parse(values).unwrap().devices().unwrap()[0].transport.max_peers;
    assert_eq!(
        [peers(&[]), peers(&[("max-ah", "64")]), peers(&[("max-ah", "65535"), ("pus", "16")])],
        [16384, 4096, 65535 * 16]
    );
    let longest = parse(&[("peer-timeout", "1h")]).unwrap();
    assert_eq!(longest.devices().unwrap()[0].transport.peer_timeout, Span::from_secs(3_600));
    assert_eq!(v4.transport.keepalive, Span::from_millis(500));
    assert_eq!(v4.transport.checksum, Checksum::Crc32c, "corruption is injected");
    let profile = v4.card.profile;
    assert_eq!((profile.part_id, profile.max_ah, profile.caps), (0xefa3, 64, caps::RDMA_READ | caps::RNR_RETRY));
    assert!(!v4.card.strict_peers);
    assert_eq!([v4, v6].map(|d| d.card.faults.seed), [7, 8]);
    assert_eq!([v4, v6].map(|d| d.faults.as_ref().map(|f| f.1)), [Some(7), Some(8)]);
}

#[test]
fn processing_units_share_what_a_device_has() {
    for (pus, pool, want) in
        [("1", None, 64), ("2", None, 32), ("4", None, 16), ("16", None, 16), ("4", Some("256"), 64)]
    {
        let values = [("pus", pus), ("path-pool", pool.unwrap_or(""))];
        let values = if pool.is_some() { &values[..] } else { &values[..1] };
        let device = parse(values).unwrap().devices().unwrap().remove(0);
        assert_eq!((device.units.to_string().as_str(), device.udp.source_ports), (pus, want), "{values:?}");
        assert_eq!(device.transport.path_pool, want);
    }
}

#[test]
fn checksums_on_request() {
    let checksum = |values: &[(&str, &str)]| parse(values).unwrap().devices().unwrap()[0].transport.checksum;
    assert_eq!(checksum(&[("checksum", "on")]), Checksum::Crc32c);
    assert_eq!(checksum(&[("checksum", "off"), ("fault", "corrupt=1%")]), Checksum::Udp);
    assert_eq!(checksum(&[("fault", "loss=1%")]), Checksum::Udp);
}

#[test]
fn each_mtu_that_may_be_asked_for_makes_a_device() {
    let datagram = |mtu, addr| {
        let devices = parse(&[("mtu", mtu), ("addr", addr)]).unwrap().devices().unwrap();
        devices[0].transport.max_datagram
    };
    assert_eq!((datagram("560", "10.0.0.1"), datagram("9264", "10.0.0.1")), (532, 9216));
    assert_eq!((datagram("560", "::1"), datagram("9264", "::1")), (512, 9216));
}

#[test]
fn errors_name_the_option_the_value_and_what_to_do() {
    for (values, says) in [
        (&[("paths", "0")][..], "--paths 0 must be a number from 1 to 256"),
        (&[("paths", "many")], "from 1 to 256"),
        (&[("devices", "65")], "from 1 to 64"),
        (&[("driver", "rdma")], "one of udp, xdp, auto"),
        (&[("pus", "3")], "a power of two from 1 to 16"),
        (&[("pus", "32")], "a power of two from 1 to 16"),
        (
            &[("pus", "2"), ("addr", "10.0.0.1,::1")],
            "--addr 10.0.0.1,::1 and --pus 2 do not go together: ::1 is an IPv6 address",
        ),
        (&[("pus", "4"), ("addr", "10.0.0.1:65533")], "choose a lower one"),
        (&[("pus", "4"), ("ports", "1000-1066")], "a device needs 68"),
        (&[("profile", "efa9")], "one of efa0, efa1, efa2, efa3, efa4"),
        (&[("caps", "fly")], "one of read"),
        (&[("addr", "0.0.0.0")], "not an address"),
        (
            &[("addr", "10.0.0.1,10.0.0.2"), ("devices", "1")],
            "--devices 1 is less than there are addresses: 2 in --addr 10.0.0.1,10.0.0.2",
        ),
        (&[("addr", "10.0.0.1:5"), ("devices", "2")], "cannot share a port"),
        (&[("addr", "10.0.0.1:5000,::1,10.0.0.1:5000")], "10.0.0.1:5000 and 10.0.0.1:5000, which overlap"),
        (
            &[("addr", "10.0.0.1:5002,10.0.0.2:5001,10.0.0.1:5000"), ("pus", "4")],
            "10.0.0.1:5000 and 10.0.0.1:5002 (4 ports each), which overlap",
        ),
        (&[("paths", "100"), ("path-pool", "99")], "--path-pool 99 is less than the 100 paths"),
        (&[("ports", "1000-1063")], "--ports 1000-1063 has 64 ports, but a device needs 65"),
        (&[("ports", "1000-1064"), ("devices", "3")], "but 3 devices need 195"),
        (&[("mtu", "100")], "from 560 to 9264"),
        (&[("rate", "fast")], "such as 500M"),
        (&[("peer-timeout", "5")], "such as 200us"),
        (&[("peer-timeout", "1ms")], "from 100ms to 3600s"),
        (&[("fault", "loss")], "makes no sense: 'loss'"),
        (&[("fault", "@/no/such/file")], "cannot be read"),
        (&[("seed", "-1")], "a number from 0"),
        (&[("log", "loud")], "one of off, error"),
        (&[("log-file", "/no/such/file")], "--log-file /no/such/file cannot be written: No such file"),
        (&[("log-file", "/")], "it is a directory"),
        (&[("max-sq-wr", "100")], "a power of two"),
        (&[("max-ah", "65536")], "from 1 to 65535"),
        (&[("max-sq-sge", "3")], "from 1 to 2"),
        (&[("counters", "some")], "on or off"),
    ] {
        let error = parse(values).expect_err(&format!("{values:?}")).to_string();
        assert!(error.contains(says), "{values:?}: {error}");
    }
    let error = Options::parse(|o| Ok((o.name == "paths").then(|| (Source::Environment, "x".to_owned())))).unwrap_err();
    assert!(error.to_string().starts_with("SRD_PATHS=x must be"), "{error}");
    let ports = |o: &Opt| Ok((o.name == "ports").then(|| (Source::Environment, "40000-40010".to_owned())));
    let error = Options::parse(ports).unwrap_err();
    assert!(error.to_string().starts_with("SRD_PORTS=40000-40010 has 11 ports"), "{error}");
}

#[test]
fn addresses_that_do_not_overlap() {
    for (addr, pus) in
        [("10.0.0.1:5000,10.0.0.1:5001", "1"), ("10.0.0.1:5004,10.0.0.2:5000,10.0.0.1:5000", "4"), ("::1,::1", "1")]
    {
        assert!(parse(&[("addr", addr), ("pus", pus)]).is_ok(), "{addr}");
    }
}

#[test]
fn misspelt_variables_are_recognised() {
    let none = "is no option of srd";
    for (name, says) in [
        ("SRD_PATH", "; do you mean SRD_PATHS?"),
        ("SRD_PEER_TIMOUT", "; do you mean SRD_PEER_TIMEOUT?"),
        ("SRD_RUNTIMEDIR", "; do you mean SRD_RUNTIME_DIR?"),
        ("SRD_BOGUS", ""),
        ("SRD_X", ""),
    ] {
        assert_eq!(strange(name), Some(format!("{name} {none}{says}")));
    }
    assert_eq!(["SRD_PATHS", "SRD_SIM_SEED", "PATH"].map(strange), [None, None, None]);
}

#[test]
fn schedules_come_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad-day");
    std::fs::write(&file, "# one bad second\nloss=50% @ 1s-2s\n").unwrap();
    let at = format!("@{}", file.display());
    assert_eq!(parse(&[("fault", &at)]).unwrap().fault.to_string(), "loss=500000ppm@1s-2s");
    std::fs::write(&file, vec![b'#'; 300 << 10]).unwrap();
    assert!(parse(&[("fault", &at)]).unwrap_err().to_string().contains("longer than 256 KiB"));
    // A pipe is empty for the second reader; and without a writer, the first one would wait for ever.
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for at in [format!("@{}", pipe.display()), format!("@{}", dir.path().display())] {
        assert!(parse(&[("fault", &at)]).unwrap_err().to_string().contains("it is no regular file"), "{at}");
    }
}

#[test]
fn seeds_are_drawn_once_and_only_if_need_be() {
    assert_eq!(parse(&[]).unwrap().seed, 0);
    let options = parse(&[("fault", "loss=1%")]).unwrap();
    assert!(options.seed_is_drawn);
    let seeds = || options.devices().unwrap()[0].faults.as_ref().map(|f| f.1);
    assert_eq!([seeds(), seeds()], [Some(options.seed); 2]);
    assert!(!parse(&[("seed", "0"), ("fault", "loss=1%")]).unwrap().seed_is_drawn);
}
