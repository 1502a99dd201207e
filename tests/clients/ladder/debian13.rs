//! Debian 13's: perftest 25.01, which has RDMA writes over SRD, libfabric 2.1 with its direct fabric, and fabtests, which tests
//! that, rdma-core 56, Open MPI 5.0 and UCX 1.18.

use super::super::case::{Case, Client, Network, Place, System};
use super::{DEVICE, all_well, everywhere, ibv, libfabric, mpi, perftest, pyverbs};

pub(super) fn cases() -> Vec<Case> {
    let cases = [rdma_core(), writes(), sends_and_reads(), over_libfabric(), fabtests(), over_mpi(), ucx()].concat();
    cases.into_iter().map(|case| case.on(System::Debian13)).collect()
}

/// A case in these places and over these networks.
fn at(conditions: &[(Place, Network)], case: Case) -> Vec<Case> {
    conditions.iter().map(|&(place, network)| Case { place, network, ..case.clone() }).collect()
}

fn rdma_core() -> Vec<Case> {
    let mut cases = vec![Case::solo(Client::IbvUtils, "ibv_devinfo -v").verdict(ibv::devinfo)];
    cases.extend(everywhere(ibv::ud_pingpong, &[]));
    cases.extend(["efa1", "efa4", "efa0", "efa2", "efa3"].map(pyverbs::suite));
    cases
}

fn writes() -> Vec<Case> {
    let write = |command: &str| perftest::pair(command.to_owned()).env("SRD_PROFILE", "efa3");
    let mut cases = Vec::new();
    for command in [
        "ib_write_bw -c SRD -s 65536 -n 500",
        "ib_write_lat -c SRD -s 64 -n 100",
        "ib_write_bw -c SRD --write_with_imm -s 65536 -n 500",
        "ib_write_lat -c SRD --write_with_imm -s 64 -n 1000",
        // With room for all completions: nothing holds a sender back whose receiver has no core to poll.
        "ib_write_bw -c SRD --write_with_imm --unsolicited_write -s 4096 -n 1000 -r 1024",
    ] {
        cases.extend(everywhere(|| write(command), &[]));
    }
    for command in [
        "ib_write_bw -c SRD -a -n 20",
        "ib_write_bw -c SRD --write_with_imm -a -n 20",
        "ib_write_bw -c SRD -s 8388608 -n 10",
        "ib_write_bw -c SRD -s 65536 -b -n 500",
        "ib_write_bw -c SRD -s 4096 -q 4 -n 1000",
        "ib_write_bw -c SRD -s 4096 -q 8 -b -n 1000",
        "ib_write_bw -c SRD --write_with_imm -s 4096 -q 4 -b -n 1000",
        "ib_write_bw -c SRD -s 4096 -l 8 -n 1000",
        "ib_write_bw -c SRD -s 4096 -t 1 -n 200",
        "ib_write_bw -c SRD -s 16384 -t 512 -n 1024",
        "ib_write_bw -c SRD -s 8192 -D 2",
    ] {
        cases.extend(at(&perftest::FAULTY, write(command)));
    }
    // Not inline, which this generation has not for writes. The last of many packets need not be the last to arrive; it waits
    // for the last byte in memory, keeps cores busy with that, and checks no other.
    for command in ["ib_write_lat -c SRD -s 8 -I 0 -n 100", "ib_write_lat -c SRD -s 65536 -n 50"] {
        cases.extend(at(&perftest::FAULTY[..1], write(command)));
    }
    // What the generation does not have, and one that this version does not know: it posts in a way that has no RDMA.
    let refused = |generation, verdict| {
        let case = Case::duo(Client::Perftest, 18515, format!("ib_write_bw -c SRD -s 4096 -n 100 -x 0 -d {DEVICE} -F"));
        case.env("SRD_PROFILE", generation).datagrams(0).verdict(verdict)
    };
    cases.push(refused("efa1", |ended| {
        perftest::says(
            ended,
            "Write verb is not supported with this EFA device",
            "refused: the first generations have none",
        )
    }));
    cases.push(refused("efa4", |ended| {
        perftest::says(ended, "Couldn't post send", "refused, as on EFA: perftest 25.01 does not know 0xefa4")
    }));
    cases
}

fn sends_and_reads() -> Vec<Case> {
    let mut cases = Vec::new();
    for command in [
        "ib_send_bw -c SRD -s 4096 -n 2000",
        "ib_send_bw -c SRD -a -n 200",
        "ib_send_bw -c SRD -s 4096 -q 8 -b -n 1000",
        "ib_send_lat -c SRD -s 64 -n 1000",
        "ib_read_bw -c SRD -s 65536 -n 500",
        "ib_read_bw -c SRD -a -n 20",
        "ib_read_lat -c SRD -s 64 -n 1000",
        "ib_send_bw -c UD -Q 1 -s 2048 -n 2000",
        "ib_send_lat -c UD -s 64 -n 1000",
    ] {
        cases.extend(at(&perftest::FAULTY, perftest::pair(command.to_owned())));
    }
    cases
}

fn over_libfabric() -> Vec<Case> {
    let info = Case::solo(Client::Libfabric, "fi_info -p efa").verdict(|ended| {
        all_well(ended)?;
        for (fabric, domain) in [("efa-direct", "rdm"), ("efa", "rdm"), ("efa", "dgrm")] {
            if !ended[0].said.contains(&format!("fabric: {fabric}\n    domain: {DEVICE}-{domain}\n")) {
                return Err(format!("the domain {DEVICE}-{domain} of {fabric} is missing"));
            }
        }
        Ok("ok".to_owned())
    });
    let mut cases = vec![info];
    for options in [
        "-f efa -e rdm -S all -I 20",
        "-f efa -e rdm -S 4194304 -I 10",
        "-f efa -e rdm -m tagged -S all -I 20",
        "-f efa-direct -e rdm -S all -I 20",
        "-f efa-direct -e rdm -S 64 -I 1000",
        "-e dgram -S all -I 20",
    ] {
        cases.extend(everywhere(|| libfabric::pair(options), &[]));
    }
    // Long messages by RDMA: reads, and writes where the generation has them.
    for generation in ["efa1", "efa3"] {
        let long = || {
            let case = libfabric::pair("-f efa -e rdm -S 1048576 -I 20").env("SRD_PROFILE", generation);
            case.env("FI_EFA_USE_DEVICE_RDMA", "1")
        };
        cases.extend(everywhere(long, &[]));
    }
    cases
}

/// libfabric's own tests of its provider. They look for the device and its counters in `/sys`.
fn fabtests() -> Vec<Case> {
    let tests = |which: &str| {
        let case = Case::solo(Client::Libfabric, format!("sh {{dir}}/fabtests.sh {which}")).device_files();
        case.env("SRD_PROFILE", "efa3").datagrams(1000).limit(1500).verdict(|ended| {
            all_well(ended)?;
            let last = ended[0].said.lines().last().unwrap_or_default();
            let passed = last.split_whitespace().next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
            if passed < 50 { Err(format!("only {passed} tests ran")) } else { Ok(format!("ok: {passed} tests")) }
        })
    };
    vec![tests("short"), tests("functional")]
}

fn over_mpi() -> Vec<Case> {
    let mut cases = Vec::new();
    // The program was compiled for Open MPI 4.1: the binary interface is the same. One-sided fails in this version wherever
    // messages go through libfabric's matching, over its TCP as well; it does work where all goes through btl ofi.
    let messages = || mpi::over_efa(Client::OpenMpi, 2, "{dir}/mpi_check two-sided");
    cases.extend(everywhere(messages, &[]));
    let by_rdma = "--mca pml ob1 --mca osc rdma --mca btl ofi,self --mca btl_ofi_mode 2";
    for ranks in [2, 8] {
        cases.extend(everywhere(|| mpi::mpi(Client::OpenMpi, ranks, by_rdma, "{dir}/mpi_check"), &[]));
    }
    cases
}

fn ucx() -> Vec<Case> {
    // It loads its part for verbs, sees the device, and wants none that is neither InfiniBand nor RoCE.
    let info = Case::solo(Client::Ucx, "ucx_info -d").env("UCX_LOG_LEVEL", "debug").device_files().verdict(|ended| {
        all_well(ended)?;
        let said = &ended[0].said;
        let declines = said.contains("device uverbs0 of type Unspecified is not supported");
        match (declines, said.contains("undefined symbol"), said.contains("Transport: tcp")) {
            (true, false, true) => Ok("declines the device, as on EFA".to_owned()),
            (_, true, _) => Err("a part of it cannot be loaded".to_owned()),
            (false, ..) => Err("it was not asked to take the device".to_owned()),
            (.., false) => Err("its other transports are gone".to_owned()),
        }
    });
    vec![info]
}
