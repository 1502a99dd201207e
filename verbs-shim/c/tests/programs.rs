//! C programs that use the library as any program would; `tests/c` has them.

mod common;

use common::Bench;

/// Compiles and runs a program, with devices of a generation.
fn run(name: &str, profile: &str, args: &[&str]) {
    let bench = Bench::new();
    let program = bench.compile(name);
    bench.run(bench.command(program).env("SRD_PROFILE", profile).args(args));
    assert_eq!(bench.left(), Vec::<String>::new(), "left behind");
}

#[test]
fn objects_are_made_and_refused() {
    for profile in ["efa0", "efa1", "efa2"] {
        run("control", profile, &[]);
    }
}

#[test]
fn what_perftest_needs_to_be_told_is_told() {
    let bench = Bench::new();
    let mut control = bench.command(bench.compile("control"));
    let said = bench.run(control.env("SRD_PROFILE", "efa1").env("SRD_LOG", "info")).stderr;
    let said = String::from_utf8(said).expect("text");
    assert!(said.contains("perftest: -c SRD") && said.contains("perftest names one with -x 0"), "{said}");
}

#[test]
fn posting_has_its_rules() {
    for (profile, most_inline) in [("efa1", "32"), ("efa4", "80")] {
        run("post", profile, &[most_inline]);
    }
}

#[test]
fn every_operation_delivers_what_was_sent() {
    for profile in ["efa0", "efa1", "efa3"] {
        run("traffic", profile, &[]);
    }
}

#[test]
fn queues_are_used_without_calls() {
    let bench = Bench::new();
    let program = bench.compile("rings");
    let run = |profile: &str, request: &str, env: &[(&str, &str)]| {
        let mut command = bench.command(&program);
        bench.run(command.env("SRD_PROFILE", profile).envs(env.iter().copied()).arg(request));
    };
    let rings = ("SRD_RINGS", "on");
    for (profile, request) in [("efa1", "64"), ("efa3", "64"), ("efa4", "128")] {
        run(profile, request, &[rings]);
    }
    run("efa3", "64", &[rings, ("SRD_PUS", "2")]);
    run("efa3", "64", &[rings, ("SRD_FAULT", "loss=2%,duplicate=2%,shuffle=16:200us"), ("SRD_SEED", "1")]);
    bench.run(bench.command(&program).env("SRD_RINGS", "on").env("SRD_PROFILE", "efa3").args(["64", "leave"]));
    // Not without being asked, and by the first generation never.
    run("efa3", "0", &[]);
    run("efa0", "0", &[rings]);
}

#[test]
fn every_status_comes_for_its_cause() {
    for profile in ["efa1", "efa2"] {
        run("status", profile, &[]);
    }
}

#[test]
fn every_status_comes_between_processes() {
    let bench = Bench::new();
    let program = bench.compile("status");
    // Two peers are waited for until they count as gone.
    bench.run(bench.command(program).env("SRD_PROFILE", "efa2").env("SRD_PEER_TIMEOUT", "2s").arg("two"));
}

#[test]
fn a_peer_that_starts_again_knows_nothing_of_before() {
    let bench = Bench::new();
    let program = bench.compile("status");
    let mut command = bench.command(program);
    // Nobody else is at this address, who might take the port before it is taken again, nor does the sender open any meanwhile.
    command.envs([("SRD_ADDR", "127.0.0.77"), ("SRD_PATHS", "1"), ("SRD_PATH_POOL", "1")]);
    // However long it takes to start again, it is not given up.
    bench.run(command.envs([("SRD_PROFILE", "efa2"), ("SRD_PEER_TIMEOUT", "60s")]).arg("restart"));
}

#[test]
fn every_status_is_forced_on_request() {
    let bench = Bench::new();
    let program = bench.compile("status");
    for status in verbs_shim::Status::all().filter(|&status| status != verbs_shim::Status::Ok) {
        let (code, wc_status) = (status.code().to_string(), status.info().wc_status.to_string());
        let mut forced = bench.command(&program);
        forced.env("SRD_PROFILE", "efa2").env("SRD_FAULT", format!("force={code}/1"));
        bench.run(forced.args(["forced", &code, &wc_status]));
    }
}

#[test]
fn several_processing_units_make_no_difference() {
    let bench = Bench::new();
    let programs: [(&str, &str, &[&str]); 10] = [
        ("control", "efa2", &[]),
        ("post", "efa1", &["32"]),
        ("traffic", "efa3", &[]),
        ("status", "efa2", &[]),
        ("events", "efa1", &[]),
        ("signal", "efa1", &[]),
        ("threads", "efa1", &[]),
        ("fork", "efa1", &[]),
        ("life", "efa1", &["all"]),
        ("life", "efa1", &["rails", "3"]),
    ];
    for (name, profile, args) in programs {
        let program = bench.compile(name);
        for pus in ["2", "4"] {
            let mut command = bench.command(&program);
            command.envs([("SRD_PUS", pus), ("SRD_PROFILE", profile), ("SRD_PEER_TIMEOUT", "2s")]);
            if args.len() > 1 {
                command.env("SRD_DEVICES", "3");
            }
            bench.run(command.args(args));
        }
    }
    let mut last = bench.command(bench.compile("life"));
    bench.run(last.env("SRD_PUS", "4").args(["sends", "7"]));
    let counted = std::fs::read_to_string(bench.path().join("run/before-rdmap0s6.counters")).expect("what was counted");
    assert!(counted.lines().any(|line| line.starts_with("send_wrs ")), "{counted}");
    assert_eq!(bench.left(), Vec::<String>::new(), "left behind");
}

/// The clock fails, as no clock does, and the card panics for it: the program gets an error number.
#[test]
fn a_panic_ends_at_the_c_interface() {
    let bench = Bench::new();
    let program = bench.compile("panic");
    let out = bench.run(&mut bench.command(&program));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("panicked at") && said.contains("defect in the card, please report it"), "{said}");
}

#[test]
fn registrations_at_the_limit_are_told_with_numbers() {
    let bench = Bench::new();
    let program = bench.compile_text(
        "regions",
        "#include \"check.h\"\n\
         int main(void) { struct ibv_pd *pd = ibv_alloc_pd(open_device(0)); static char mem[4096]; struct ibv_mr *mr[5];\n\
         for (int round = 0; round < 2; round++) {\n\
         for (int i = 0; i < 5; i++) { CHECK(mr[i] = ibv_reg_mr(pd, mem, 1000, 0)); }\n\
         NULL_WITH(ibv_reg_mr(pd, mem, 77, 0), ENOMEM);\n\
         for (int i = 0; i < 5; i++) { IS(ibv_dereg_mr(mr[i]), 0); }\n\
         } return 0; }\n",
    );
    let out = bench.run(bench.command(&program).env("SRD_MAX_MR", "5"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("77 bytes are not registered: 5 regions of 5000 bytes are"), "{said}");
}

/// 200 GB that nobody has touched: registering looks at the mappings, not at the pages.
#[test]
fn a_sparse_region_commits_no_memory() {
    let bench = Bench::new();
    let program = bench.compile_text(
        "sparse",
        "#include \"check.h\"\n#include <sys/resource.h>\n\
         int main(void) { struct ibv_pd *pd = ibv_alloc_pd(open_device(0)); size_t len = 200ul << 30;\n\
         char *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);\n\
         CHECK(mem != MAP_FAILED); struct ibv_mr *mr = ibv_reg_mr(pd, mem, len, IBV_ACCESS_LOCAL_WRITE); CHECK(mr);\n\
         IS(ibv_dereg_mr(mr), 0); struct rusage used; IS(getrusage(RUSAGE_SELF, &used), 0);\n\
         CHECK(used.ru_maxrss < 256 << 10); return 0; }\n",
    );
    bench.run(&mut bench.command(&program));
}

#[test]
fn events_come_when_they_were_asked_for() {
    run("events", "efa1", &[]);
}

#[test]
fn signal_handlers_may_interrupt_verbs_and_call_them() {
    run("signal", "efa1", &[]);
}

#[test]
fn sessions_end_where_the_program_ends_them() {
    run("session", "efa1", &[]);
}

#[test]
fn processes_that_end_owe_nothing() {
    let bench = Bench::new();
    let program = bench.compile("exit");
    for pus in ["1", "4"] {
        bench.run(bench.command(&program).env("SRD_PUS", pus));
    }
    assert_eq!(bench.left(), Vec::<String>::new(), "left behind");
}

#[test]
fn threads_are_cancelled_outside_of_the_verbs() {
    let bench = Bench::new();
    let program = bench.compile("cancel");
    // A log that says much, since writing it is a place to be cancelled.
    let two = [("SRD_DEVICES", "2")];
    bench.run(bench.command(&program).envs(two).env("SRD_LOG", "debug"));
    // A child opens the log anew for each line.
    bench.run(bench.command(program).envs(two).env("SRD_LOG_FILE", bench.path().join("log")).arg("child"));
}

#[test]
fn threads_share_everything() {
    run("threads", "efa1", &[]);
}

#[test]
fn children_leave_the_parents_devices_alone() {
    run("fork", "efa1", &[]);
}

#[test]
fn devices_come_and_go() {
    run("life", "efa1", &["all"]);
    run("life", "efa1", &["cycles", "200"]);
    // With fewer sockets, which take most of the time.
    let bench = Bench::new();
    let program = bench.compile("life");
    let few = [("SRD_PATHS", "1"), ("SRD_PATH_POOL", "1")];
    bench.run(bench.command(&program).envs(few).args(["cycles", "10000"]));
}

#[test]
fn devices_reach_each_other() {
    let bench = Bench::new();
    let program = bench.compile("life");
    bench.run(bench.command(program).env("SRD_DEVICES", "3").args(["rails", "3"]));
}

#[test]
fn sysfs_is_there_while_the_process_lives() {
    let bench = Bench::new();
    let program = bench.compile("life");
    let told = |out: std::process::Output| String::from_utf8(out.stdout).expect("a path").trim().to_owned();
    let path = told(bench.run(bench.command(&program).arg("sysfs")));
    assert!(path.starts_with(&bench.path().display().to_string()), "{path}");
    assert_eq!(bench.left(), Vec::<String>::new());
    // A process that only ends leaves nothing either.
    bench.run(bench.command(&program).arg("leave"));
    assert_eq!(bench.left(), Vec::<String>::new());
    // One that is killed does; whoever comes next removes it.
    let out = bench.command(&program).arg("die").output().expect("it runs");
    assert!(!out.status.success());
    assert_eq!(bench.left().len(), 1);
    bench.run(bench.command(&program).arg("leave"));
    assert_eq!(bench.left(), Vec::<String>::new());
    // A child that outlives its parent has one, too.
    for args in [&["daemons"][..], &["daemons", "close"]] {
        let out = bench.run(bench.command(&program).args(args));
        assert_eq!(out.stdout, b"lives\n");
        assert_eq!(bench.left(), Vec::<String>::new());
    }
    // The variable of a parent is not for a program that it executes; that of the user is.
    bench.run(bench.command(&program).arg("exec"));
    assert_eq!(bench.left(), Vec::<String>::new());
}

/// Little may be locked, nothing can be written anywhere, there is no shared memory, and no privilege.
#[test]
fn a_sandbox_is_enough() {
    let bench = Bench::new();
    let program = bench.compile("life");
    let script = "set -e; ulimit -l 64; mount --make-rprivate /; mount -t tmpfs -o mode=0,size=4k none /dev/shm
        for at in $(findmnt --noheadings --output TARGET --target \"$1\") /; do mount -o remount,bind,ro \"$at\"; done
        if touch \"$1/run\" 2>/dev/null; then echo 'not read-only' >&2; exit 9; fi
        shift; exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all \"$@\"";
    let mut command = bench.command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(bench.path());
    bench.run(command.arg(&program).args(["sends", "7"]));
}

#[test]
fn counters_are_published() {
    let bench = Bench::new();
    let program = bench.compile("life");
    bench.run(bench.command(&program).args(["sends", "7"]));
    let left = std::fs::read_to_string(bench.path().join("run/before-rdmap0s6.counters")).expect("what was counted");
    assert!(left.lines().any(|line| line == "send_wrs 7"), "{left}");
}

#[test]
fn sysfs_of_the_user_is_left_alone() {
    let bench = Bench::new();
    let program = bench.compile_text(
        "path",
        "#include <stdlib.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         int main(void) { ibv_fork_init(); puts(getenv(\"SYSFS_PATH\")); return 0; }\n",
    );
    let out = bench.run(bench.command(&program).env("SYSFS_PATH", "/sys"));
    assert_eq!(out.stdout, b"/sys\n");
    let out = bench.run(&mut bench.command(&program));
    assert_ne!(out.stdout, b"/sys\n");
}

#[test]
fn ports_are_as_fast_as_they_claim() {
    let bench = Bench::new();
    let program = bench.compile_text(
        "speed",
        "#include \"check.h\"\n\
         int main(void) { struct ibv_context *ctx = open_device(0); struct ibv_port_attr port[2]; uint64_t speed = 0;\n\
         int (*query)(struct ibv_context *, uint32_t, uint64_t *) = dlsym(RTLD_DEFAULT, \"ibv_query_port_speed\");\n\
         IS(verbs_get_ctx(ctx)->query_port(ctx, 1, port, 56), 0); IS(query(ctx, 1, &speed), 0);\n\
         IS(query(ctx, 0, &speed), EINVAL); IS(query(ctx, 2, &speed), EINVAL); IS(query(ctx, 1, NULL), EINVAL);\n\
         printf(\"%d %d %u %lu\", port->active_width, port->active_speed, ((uint32_t *)port)[13], speed);\n\
         return 0; }\n",
    );
    for (gbps, told) in [("120", "8 8 8 1200"), ("800", "4 128 128 8000"), ("1600", "4 128 256 16000")] {
        let out = bench.run(bench.command(&program).env("SRD_GBPS", gbps));
        assert_eq!(String::from_utf8_lossy(&out.stdout), told);
    }
}

#[test]
fn options_that_make_no_sense_are_told() {
    let bench = Bench::new();
    let program = bench.compile_text(
        "list",
        "#include <infiniband/verbs.h>\n\
         int main(void) { return ibv_get_device_list(NULL) ? 0 : 7; }\n",
    );
    let out = bench.command(&program).env("SRD_PROFILE", "efa9").output().expect("it runs");
    assert_eq!(out.status.code(), Some(7));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("SRD_PROFILE=efa9"), "{said}");
}

/// Nothing is pinned, so there is no need for permission to pin.
#[test]
fn memory_that_may_not_be_locked_is_enough() {
    let bench = Bench::new();
    let program = bench.compile("traffic");
    let limited = ["-c", "ulimit -l 0 && exec \"$0\""];
    bench.run(bench.command("sh").args(limited).arg(program).env("SRD_PROFILE", "efa3"));
}

/// A line of the log that nobody can read is lost, and nothing else.
#[test]
fn a_broken_log_does_not_end_the_program() {
    let bench = Bench::new();
    let program = bench.compile("log");
    for way in ["pipe", "file"] {
        bench.run(bench.command(&program).arg(way));
        bench.run(bench.command(&program).args([way, "list"]).env("SRD_PROFILE", "efa9"));
    }
    let log = bench.path().join("lines");
    bench.run(bench.command(&program).arg("file").env("SRD_LOG_FILE", log));
}

/// What the log file had for a descriptor may be a file of the program by now, and a child is not its parent.
#[test]
fn lines_go_to_the_log_and_nowhere_else() {
    let bench = Bench::new();
    let program = bench.compile("log");
    let at = |name: &str| bench.path().join(name);
    let closes = at("closes");
    bench.run(bench.command(&program).env("SRD_COUNTERS", "off").env("SRD_LOG_FILE", &closes).arg("closes"));
    let said = std::fs::read_to_string(closes).expect("a log");
    assert!(said.contains("has failed") && said.contains(" WARN command refused"), "{said}");
    std::fs::create_dir(at("logs")).expect("a directory");
    bench.run(bench.command(&program).env("SRD_LOG_FILE", at("logs/%p")).arg("forks"));
    let logs: Vec<_> = std::fs::read_dir(at("logs")).expect("logs").map(|log| log.expect("a log").path()).collect();
    assert_eq!(logs.len(), 2);
    for log in logs {
        let said = std::fs::read_to_string(log).expect("a log");
        assert_eq!(said.lines().filter(|line| line.contains("command refused")).count(), 1, "{said}");
    }
}

/// No more than the library, which was loaded before: neither in the process, nor in a child.
#[test]
fn devices_work_where_there_are_no_files() {
    let bench = Bench::new();
    let program = bench.compile("jail");
    let empty = bench.path().join("empty");
    std::fs::create_dir(&empty).expect("a directory");
    let mut command = bench.command("unshare");
    command.args(["--user", "--map-root-user"]).arg(program).arg(empty);
    bench.run(command.env("SRD_DEVICES", "2").env("SRD_LOG_FILE", bench.path().join("log")));
}

#[test]
fn much_can_be_forbidden() {
    let bench = Bench::new();
    let (denied, program) = (bench.compile("denied"), bench.compile("traffic"));
    bench.run(bench.command(denied).arg(program).env("SRD_PROFILE", "efa3"));
}

#[test]
fn verbs_take_little_stack() {
    let bench = Bench::new();
    let program = bench.compile("stack");
    bench.run(bench.command(program).env("SRD_DEVICES", "2"));
}

/// Exit handlers, and destructors of a thread's data.
#[test]
fn verbs_work_as_long_as_a_thread_does() {
    let bench = Bench::new();
    let program = bench.compile("late");
    let out = bench.run(&mut bench.command(program));
    let said = String::from_utf8_lossy(&out.stderr);
    let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    let counts = ["command refused", "ended with REMOTE_ERROR_BAD_DEST_QPN (9)", "WARN"].map(count);
    assert!(counts == [4, 1, 5] && said.lines().count() == 5, "{said}");
}

/// The environment of a program that may do more than its user does not say which files it writes.
#[test]
fn set_user_id_programs_take_no_options_from_their_users() {
    // SAFETY: no memory is passed.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: needs root");
        return;
    }
    let bench = Bench::new();
    let program = bench.compile_for_all(
        "privileged",
        "#include \"check.h\"\n\
         const char *ibv_get_sysfs_path(void);\n\
         int main(void) { CHECK(geteuid() == 0 && getuid() == 12345);\n\
         CHECK(ibv_get_device_list(NULL)); CHECK(strcmp(ibv_get_sysfs_path(), getenv(\"EVIL\"))); return 0; }\n",
    );
    let log = bench.path().join("log");
    let script = "set -e; chmod 755 \"$1\"; chmod 4755 \"$2\"
        exec setpriv --reuid 12345 --regid 12345 --clear-groups \"$2\"";
    let mut command = bench.command("sh");
    command.args(["-c", script, "sh"]).arg(bench.path()).arg(&program).env("SRD_PROFILE", "efa9");
    command.env("SRD_LOG_FILE", &log).env("SYSFS_PATH", bench.path()).env("EVIL", bench.path());
    bench.run(&mut command);
    assert!(!log.exists());
}

/// What it prints there must not go to a peer.
#[test]
fn standard_output_is_the_programs_even_if_it_is_closed() {
    let bench = Bench::new();
    let program = bench.compile("standard");
    for log in [None, Some(bench.path().join("log"))] {
        let mut command = bench.command("sh");
        command.args(["-c", "exec \"$0\" <&- >&- 2>&-"]).arg(&program).env("SRD_DEVICES", "2");
        if let Some(log) = log {
            command.env("SRD_LOG_FILE", log);
        }
        bench.run(&mut command);
    }
}

/// `errno` says what the process may not have, so that a program knows what to ask its user for.
#[test]
fn what_the_process_lacks_is_told_by_errno() {
    let bench = Bench::new();
    let program = bench.compile("limits");
    for (what, advice) in [("descriptors", "ulimit -n"), ("threads", "ulimit -u")] {
        let out = bench.run(bench.command(&program).arg(what));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.lines().filter(|line| line.contains("cannot")).all(|line| line.contains(advice)), "{said}");
    }
    bench.run(bench.command(&program).env("SRD_PUS", "2").arg("descriptors"));
}

/// Names and rates are those of Debian's library, for all numbers that there are and some more.
#[test]
fn names_are_those_of_the_original() {
    let bench = Bench::new();
    let program = bench.compile_text("names", "#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         int main(void) {\n\
         for (int i = -2; i < 40; i++) printf(\"%s, %s, %s, %s, %d, %d\\n\", ibv_node_type_str(i), ibv_port_state_str(i),\n\
         ibv_event_type_str(i), ibv_wc_status_str(i), ibv_rate_to_mult(i), ibv_rate_to_mbps(i));\n\
         for (int i = -2; i < 1300000; i++) if (mult_to_ibv_rate(i) || mbps_to_ibv_rate(i))\n\
         printf(\"%d: %d, %d\\n\", i, mult_to_ibv_rate(i), mbps_to_ibv_rate(i));\n\
         return 0; }\n");
    let ours = bench.run(&mut bench.command(&program)).stdout;
    let theirs = bench.run(bench.command(&program).env_remove("LD_LIBRARY_PATH")).stdout;
    assert!(theirs.len() > 2000);
    assert_eq!(String::from_utf8_lossy(&ours), String::from_utf8_lossy(&theirs));
}

#[test]
fn a_device_whose_descriptors_are_closed_fails_once() {
    let bench = Bench::new();
    let program = bench.compile("daemon");
    for way in ["polls", "sleeps"] {
        // Without files that are open for a moment, perhaps in just this one.
        let out = bench.run(bench.command(&program).env("SRD_COUNTERS", "off").arg(way));
        let said = String::from_utf8_lossy(&out.stderr);
        // Beside the command that it refuses.
        let (refused, lines): (Vec<_>, Vec<_>) = said.lines().partition(|line| line.contains("command refused"));
        assert!(refused.len() == 1 && lines.len() == 1 && lines[0].contains("has failed"), "{way}: {said}");
    }
}
