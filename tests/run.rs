//! What stands around unmodified programs: `srd run`, `devices`, `doctor`, `explain`, `stat`.
//!
//! The programs are tiny, compiled here with `cc`, and so are the libraries: what counts is which one the loader picks.

#[path = "../verbs-shim/c/tests/common/library.rs"]
mod library;
#[path = "support/command.rs"]
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use serde_json::Value;
use support::{LIMIT, Output, command, fails, finish, is_documented, names, run, signal};
use verbs_shim::counters::{DEVICE, Identity, PORT, Publisher, Values};

/// Tells which library it got, what `srd` left in the environment, and ends as it is told.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int ibv_fork_init(void);
extern char **environ;
int main(int argc, char **argv) {
    printf("library %d\n", ibv_fork_init());
    for (char **e = environ; *e; e++)
        if (!strncmp(*e, "SRD_", 4) || !strncmp(*e, "LD_", 3)) puts(*e);
    return argc > 1 ? atoi(argv[1]) : 0;
}
"#;
/// Loads a module at run time, as a Python does.
const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *module = dlopen(argv[1], RTLD_NOW);
    if (!module) { puts(dlerror()); return 1; }
    printf("library %d\n", ((int (*)(void)) dlsym(module, argv[2]))());
    return 0;
}
"#;
/// Opens all devices, tells their names, and waits.
const VERBS: &str = r#"
#include <stdio.h>
void **ibv_get_device_list(int *);
const char *ibv_get_device_name(void *);
void *ibv_open_device(void *);
void *ibv_alloc_pd(void *);
int main(void) {
    void **list = ibv_get_device_list(NULL);
    for (int k = 0; list && list[k]; k++) {
        void *context = ibv_open_device(list[k]);
        if (!context || !ibv_alloc_pd(context)) return 1;
        printf("%s ", ibv_get_device_name(list[k]));
    }
    puts("");
    fflush(stdout);
    return getchar() != EOF;
}
"#;
/// What the library says that is ours, and what the host's says.
const OURS: u32 = 42;
const OTHER: u32 = 7;

/// A directory with a library that is ours and one that is the host's, and programs.
struct Workshop {
    dir: tempfile::TempDir,
}

impl Workshop {
    fn new() -> Workshop {
        let shop = Workshop { dir: tempfile::tempdir().expect("a directory") };
        fs::create_dir(shop.at("host")).expect("create");
        shop.library("libsrd_verbs.so", "libibverbs.so.1", OURS);
        shop.library("host/libibverbs.so.1", "libibverbs.so.1", OTHER);
        shop
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).to_str().expect("UTF-8").to_owned()
    }

    fn cc(&self, name: &str, source: &str, args: &[&str]) -> PathBuf {
        let file = self.at(&format!("{}.c", name.replace('/', "_")));
        fs::write(&file, source).expect("write the source");
        let out = self.at(name);
        let done = Command::new("cc").arg("-o").arg(&out).arg(&file).args(args).current_dir(self.dir.path()).output();
        let done = done.expect("run cc");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        out
    }

    fn library(&self, name: &str, soname: &str, answer: u32) -> PathBuf {
        let source = format!("int ibv_fork_init(void) {{ return {answer}; }}");
        fs::write(self.at("exports.map"), "IBVERBS_1.0 { }; IBVERBS_1.1 { global: ibv_fork_init; };").expect("write");
        let soname = format!("-Wl,-soname,{soname}");
        self.cc(name, &source, &["-shared", "-fPIC", &soname, "-Wl,--version-script=exports.map"])
    }

    /// A program that needs the library at `library`, by its soname.
    fn program(&self, name: &str, library: &str, args: &[&str]) -> PathBuf {
        self.cc(name, PROGRAM, &[&[library], args].concat())
    }

    /// `srd run` with our library, in a runtime directory of its own; where the loader finds the host's without us.
    fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let (library, runtime) = (self.text("libsrd_verbs.so"), self.text("runtime"));
        let fixed = ["run", "--library", &library, "--runtime-dir", &runtime, "--addr", "127.0.0.1"];
        let mut command = command(&[&fixed, options, &["--"], program].concat());
        command.env("LD_LIBRARY_PATH", self.at("host")).env_remove("LD_PRELOAD");
        command
    }
}

fn output(mut command: Command) -> Output {
    finish(command.spawn().expect("start the command"))
}

fn says(output: &Output, line: &str) {
    assert!(output.stdout.lines().any(|l| l == line), "no '{line}' in {output:?}");
}

#[test]
fn run_programs_get_the_library_and_the_options() {
    let shop = Workshop::new();
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    let program = program.to_str().expect("UTF-8");
    let mut without = Command::new(program);
    without.env("LD_LIBRARY_PATH", shop.at("host")).stdout(Stdio::piped()).stderr(Stdio::piped());
    says(&output(without), &format!("library {OTHER}"));

    // What comes after the program is the program's, without the two hyphens, too.
    let fixed = ["run", "--library", &shop.text("libsrd_verbs.so"), "--runtime-dir", &shop.text("runtime")];
    let done = run(&[&fixed[..], &["--addr", "127.0.0.1", "echo", "--paths", "-v"]].concat());
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "--paths -v\n"), "{done:?}");

    let done = output(shop.run(&["--paths", "3", "--profile", "efa3"], &[program, "33"]));
    assert_eq!((done.code, done.stderr.as_str()), (Some(33), ""), "{done:?}");
    says(&done, &format!("library {OURS}"));
    says(&done, "SRD_PATHS=3");
    says(&done, "SRD_PROFILE=efa3");
    let path = done.stdout.lines().find_map(|l| l.strip_prefix("LD_LIBRARY_PATH=")).expect("a search path");
    let (links, rest) = path.split_once(':').expect("two directories");
    assert_eq!(rest, shop.text("host"));
    for name in ["libibverbs.so.1", "libibverbs.so", "libefa.so.1", "libefa.so"] {
        let target = fs::canonicalize(Path::new(links).join(name)).expect("a link");
        assert_eq!(target, fs::canonicalize(shop.at("libsrd_verbs.so")).expect("a file"));
    }
    assert_eq!(fs::metadata(shop.at("runtime")).expect("a directory").mode() & 0o777, 0o700);
    // The second run takes the same links, and so does one inside of another.
    let srd = env!("CARGO_BIN_EXE_srd");
    let done = output(shop.run(&[], &[srd, "run", "--", program]));
    says(&done, &format!("library {OURS}"));
    assert_eq!(fs::read_dir(shop.at("runtime")).expect("a directory").count(), 1);
}

#[test]
fn run_finds_the_library_where_it_is_installed_and_where_it_is_built() {
    let shop = Workshop::new();
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    fs::create_dir(shop.at("bin")).expect("create");
    fs::copy(env!("CARGO_BIN_EXE_srd"), shop.at("bin/srd")).expect("copy");
    let output = || {
        let mut command = Command::new(shop.at("bin/srd"));
        command.args(["run", "--runtime-dir", &shop.text("runtime"), "--addr", "127.0.0.1", "--"]).arg(&program);
        command.env("LD_LIBRARY_PATH", shop.at("host")).stdout(Stdio::piped()).stderr(Stdio::piped());
        output(command)
    };
    output().fails(3, &["cannot find libsrd_verbs.so", "../lib", "./x install", "SRD_LIBRARY"]);
    for place in ["lib", "bin"] {
        fs::create_dir_all(shop.at(place)).expect("create");
        fs::rename(shop.at("libsrd_verbs.so"), shop.at(place).join("libsrd_verbs.so")).expect("move");
        says(&output(), &format!("library {OURS}"));
        fs::rename(shop.at(place).join("libsrd_verbs.so"), shop.at("libsrd_verbs.so")).expect("move");
    }
}

#[test]
fn run_signals_and_process_numbers_are_the_programs_own() {
    let shop = Workshop::new();
    let mut child = shop.run(&[], &["sh", "-c", "echo $$; read line; kill -TERM $$"]);
    let mut child = child.stdin(Stdio::piped()).spawn().expect("start");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), child.id().to_string());
    drop(child.stdin.take());
    let status = child.wait().expect("wait");
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn run_a_pipe_that_breaks_ends_programs_as_without() {
    let shop = Workshop::new();
    let run = shop.run(&[], &["grep", "SigIgn", "/proc/self/status"]);
    for (trap, ignored) in [("trap - PIPE", false), ("trap '' PIPE", true)] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{trap}; exec \"$@\""), "sh"]).arg(run.get_program()).args(run.get_args());
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = output(shell);
        let mask = done.stdout.split_whitespace().nth(1).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        let is_ignored = mask.expect("a mask") & 1 << (Signal::SIGPIPE as u32 - 1) != 0;
        assert_eq!(is_ignored, ignored, "{trap}: {done:?}");
    }
}

#[test]
fn run_seed_of_faults_is_printed_and_repeats() {
    let shop = Workshop::new();
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    let program = program.to_str().expect("UTF-8");
    let done = output(shop.run(&["--fault", "loss=1%"], &[program]));
    let seed = done.stderr.split("--seed ").nth(1).and_then(|t| t.split(' ').next()).expect("a seed is printed");
    says(&done, &format!("SRD_SEED={seed}"));
    says(&done, "SRD_FAULT=loss=1%");
    let again = output(shop.run(&["--fault", "loss=1%", "--seed", seed], &[program]));
    assert_eq!(again.stderr, "");
    says(&again, &format!("SRD_SEED={seed}"));
    // A schedule is found from any directory.
    fs::write(shop.at("schedule"), "loss=1%@1s-2s\n").expect("write");
    let mut command = shop.run(&["--fault", "@schedule", "--seed", "1"], &[program]);
    command.current_dir(shop.dir.path());
    says(&output(command), &format!("SRD_FAULT=@{}", shop.text("schedule")));
}

#[test]
fn run_files_that_the_environment_names_are_found_from_any_directory() {
    let shop = Workshop::new();
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    fs::write(shop.at("schedule"), "loss=1%@1s-2s\n").expect("write");
    let named = [
        ("SRD_FAULT", "@", "schedule"),
        ("SRD_LIBRARY", "", "libsrd_verbs.so"),
        ("SRD_LOG_FILE", "", "log"),
        ("SRD_RUNTIME_DIR", "", "runtime"),
    ];
    let program = program.to_str().expect("UTF-8");
    let mut command = command(&["run", "--addr", "127.0.0.1", "--seed", "1", "--", program]);
    command.envs(named.map(|(name, at, file)| (name, format!("{at}{file}")))).current_dir(shop.dir.path());
    let done = output(command);
    for (name, at, file) in named {
        says(&done, &format!("{name}={at}{}", shop.text(file)));
    }
}

#[test]
fn run_works_in_a_directory_whose_name_is_no_text() {
    use std::os::unix::ffi::OsStrExt as _;
    let shop = Workshop::new();
    let dir = shop.dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&dir).expect("create");
    fs::write(dir.join("schedule"), "loss=1%@1s-2s\n").expect("write");
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    let options = ["--fault", "@schedule", "--seed", "1", "--log-file", "log"];
    let mut absolute = shop.run(&options, &[program.to_str().expect("UTF-8")]);
    absolute.current_dir(&dir);
    let done = output(absolute);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    says(&done, "SRD_FAULT=@schedule");
    says(&done, "SRD_LOG_FILE=log");
    // The directory of links may be there, and libraries that are loaded in advance.
    let library = shop.text("libsrd_verbs.so");
    let also = "libibverbs-1a2b3c4d.so.1";
    let fixed = ["run", "--library", &library, "--addr", "127.0.0.1", "--also", also, "--"];
    let mut command = command(&[&fixed[..], &[program.to_str().expect("UTF-8")]].concat());
    command.env("SRD_RUNTIME_DIR", "r").current_dir(&dir).env_remove("LD_PRELOAD");
    let done = command.output().expect("run it");
    let stdout = String::from_utf8_lossy(&done.stdout);
    assert!(stdout.lines().any(|l| l == format!("library {OURS}")), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "", "the loader finds what it shall load in advance");
}

#[test]
fn run_renamed_copies_are_replaced() {
    let shop = Workshop::new();
    let renamed = "libibverbs-1a2b3c4d.so.1.14.44.0";
    let wheel = "lib/python3.11/site-packages/wheel.libs";
    fs::create_dir_all(shop.at(wheel)).expect("create");
    shop.library(&format!("{wheel}/{renamed}"), renamed, OTHER);
    let built_in = ["-Wl,--disable-new-dtags,-rpath,$ORIGIN/wheel.libs"];
    let library = format!("{wheel}/{renamed}");

    // A program that asks for the copy itself, from a directory that counts before ours.
    let site = "lib/python3.11/site-packages";
    let program = shop.program(&format!("{site}/program"), &library, &built_in);
    let done = output(shop.run(&[], &[program.to_str().expect("UTF-8")]));
    says(&done, &format!("library {OURS}"));

    // A module that does, in a program that knows nothing of it.
    let source = "int ibv_fork_init(void); int answer(void) { return ibv_fork_init(); }";
    let module = shop.cc(&format!("{site}/module.so"), source, &["-shared", "-fPIC", &library, built_in[0]]);
    let module = module.to_str().expect("UTF-8");
    let loader = shop.cc("loader", LOADER, &["-ldl"]);
    let loader = loader.to_str().expect("UTF-8");
    says(&output(shop.run(&[], &[loader, module, "answer"])), &format!("library {OTHER}"));
    let with = ["--also", renamed];
    let done = output(shop.run(&with, &[loader, module, "answer"]));
    assert_eq!(done.stderr, "", "the versions are there");
    says(&done, &format!("library {OURS}"));
    // A program that opens it by name, and asks it for symbols.
    says(&output(shop.run(&with, &[loader, renamed, "ibv_fork_init"])), &format!("library {OURS}"));

    // A Python finds the modules of its environment, and so does a script for it.
    fs::create_dir(shop.at("bin")).expect("create");
    fs::copy(loader, shop.at("bin/python3")).expect("copy");
    says(&output(shop.run(&[], &[&shop.text("bin/python3"), module, "answer"])), &format!("library {OURS}"));
}

#[test]
fn run_libraries_of_conda_do_not_win() {
    let shop = Workshop::new();
    fs::create_dir(shop.at("lib")).expect("create");
    shop.library("lib/libibverbs.so.1", "libibverbs.so.1", OTHER);
    // A module that looks beside itself first, in a program that knows nothing of it.
    let source = "int ibv_fork_init(void); int answer(void) { return ibv_fork_init(); }";
    let beside = "-Wl,--disable-new-dtags,-rpath,$ORIGIN";
    let module = shop.cc("lib/module.so", source, &["-shared", "-fPIC", "lib/libibverbs.so.1", beside]);
    let loader = shop.cc("loader", LOADER, &["-ldl"]);
    let program = [&loader, &module].map(|path| path.to_str().expect("UTF-8"));
    let mut command = shop.run(&[], &[program[0], program[1], "answer"]);
    command.env("CONDA_PREFIX", shop.dir.path());
    let done = output(command);
    assert_eq!(done.stderr, "", "{done:?}");
    says(&done, &format!("library {OURS}"));
}

#[test]
fn run_directories_that_are_built_in_do_not_win() {
    let shop = Workshop::new();
    let built_in = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/host";
    let program = shop.program("program", "host/libibverbs.so.1", &[built_in]);
    says(&output(shop.run(&[], &[program.to_str().expect("UTF-8")])), &format!("library {OURS}"));
}

#[test]
fn run_warns_of_programs_that_cannot_be_given_a_library() {
    let shop = Workshop::new();
    let program = shop.cc("static", "int main(void) { return 5; }", &["-static"]);
    let done = output(shop.run(&[], &[program.to_str().expect("UTF-8")]));
    assert_eq!(done.code, Some(5), "{done:?}");
    assert!(done.stderr.contains("linked statically"), "{done:?}");
    let program = shop.cc("foreign", "int main(void) { return 5; }", &["-Wl,--dynamic-linker=/no/loader.so"]);
    let done = output(shop.run(&[], &[program.to_str().expect("UTF-8")]));
    done.fails(3, &["foreign asks for the loader /no/loader.so, which is not here", "cannot run"]);
    let script = shop.at("script");
    fs::write(&script, "#!/no/such/python -u\n").expect("write");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    let done = output(shop.run(&[], &[script.to_str().expect("UTF-8")]));
    done.fails(3, &["script names the interpreter /no/such/python, which is not here", "cannot run"]);

    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root, to give a program away");
        return;
    }
    let program = shop.program("set-uid", "host/libibverbs.so.1", &[]);
    std::os::unix::fs::chown(&program, Some(65534), None).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let done = output(shop.run(&["--print-env"], &[program.to_str().expect("UTF-8")]));
    assert!(done.stderr.contains("is set-uid"), "{done:?}");
}

#[test]
fn run_warns_of_launchers_and_misspelt_variables() {
    let shop = Workshop::new();
    let mpirun = shop.at("mpirun");
    symlink("/bin/true", &mpirun).expect("link");
    let mut command = shop.run(&[], &[mpirun.to_str().expect("UTF-8"), "-H", "a,b", "program"]);
    command.env("SRD_PEER_TIMOUT", "1s");
    let done = output(command);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("other hosts") && done.stderr.contains("do you mean SRD_PEER_TIMEOUT?"), "{done:?}");
    // A library that comes before ours; but not ours, as in a run inside of another one.
    let loaded = |options: &[&str]| {
        let mut command = shop.run(options, &["true"]);
        command.env("LD_PRELOAD", shop.at("host/libibverbs.so.1"));
        output(command).stderr
    };
    let text = loaded(&[]);
    assert!(text.contains("host/libibverbs.so.1 is loaded in advance, and used instead"), "{text}");
    assert_eq!(loaded(&["--also", "libibverbs.so.1"]), "", "ours comes first");
    let inner = [env!("CARGO_BIN_EXE_srd"), "run", "--"];
    let done = output(shop.run(&["--also", "libibverbs.so.1"], &[&inner[..], &["true"]].concat()));
    assert_eq!(done.stderr, "", "it is ours");
    // A launcher that becomes another user, who has no way to the links.
    let runuser = shop.at("runuser");
    symlink("/bin/true", &runuser).expect("link");
    let done = output(shop.run(&[], &[runuser.to_str().expect("UTF-8"), "-u", "nobody", "program"]));
    assert!(done.code == Some(0) && done.stderr.contains("'runuser ... srd run -- PROGRAM'"), "{done:?}");
}

#[test]
fn run_print_env_is_what_a_shell_takes() {
    let shop = Workshop::new();
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    let printed = output(shop.run(&["--paths", "2", "--print-env"], &[]));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let variables = printed.stdout.lines().map(|l| l.split_once('=').expect("NAME=VALUE"));
    let mut command = Command::new(program);
    command.envs(variables).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = output(command);
    says(&done, &format!("library {OURS}"));
    says(&done, "SRD_PATHS=2");

    // Each in one line, or not at all.
    let events = "loss=1% # a little\ndead=all@4s-4.2s";
    let printed = output(shop.run(&["--fault", events, "--seed", "1", "--print-env"], &[]));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.stdout.lines().all(|line| line.contains('=')), "{printed:?}");
    says(&printed, "SRD_FAULT=loss=10000ppm,dead=all@4s-4200ms");
    let mut command = shop.run(&["--print-env"], &[]);
    command.env("LD_LIBRARY_PATH", "/a\nb");
    output(command).fails(3, &["LD_LIBRARY_PATH=", "has an end of line in it"]);
}

#[test]
fn run_says_soon_why_it_cannot() {
    let shop = Workshop::new();
    let library = shop.text("libsrd_verbs.so");
    fs::write(shop.at("text"), "no library\n").expect("write");
    fs::write(shop.at("file"), "no directory\n").expect("write");
    let (text, file, spaced) = (shop.text("text"), shop.text("file"), shop.text("with space"));
    let began = Instant::now();
    let good = ["run", "--library", &library, "--addr", "127.0.0.1"];
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--", "no-such-program"], 3, "no program 'no-such-program' in PATH"),
        (&["--", "/no/such/program"], 3, "No such file"),
        (&["--", &text], 3, "not executable"),
        (&["--", "/tmp"], 3, "is a directory"),
        (&["--paths", "0", "--", "true"], 2, "--paths 0 must be a number from 1 to 256"),
        (&["--fault", "los=1%", "--", "true"], 2, "unknown name; known are loss"),
        (&["--driver", "dpdk", "--", "true"], 2, "one of udp, xdp, auto"),
        (&["--xdp-queues", "17", "--", "true"], 2, "must be a number from 1 to 16"),
        (&["--also", "a/b.so", "--", "true"], 2, "no name of a library"),
        (&["--driver", "xdp", "--", "true"], 3, "device rdmap0s6 cannot be opened"),
        (&["--log-file", "/no/such/dir", "--", "true"], 2, "--log-file /no/such/dir cannot be written: No such file"),
        (&["--runtime-dir", &file, "--", "true"], 3, "it is no directory"),
        (&["--runtime-dir", &spaced, "--", "true"], 3, "because of the ' ' in its name"),
        (&["--bogus", "--", "true"], 2, "unexpected argument '--bogus' found"),
        (&["--", "-weird"], 3, "no program '-weird' in PATH"),
        (&[], 2, "CMD"),
    ];
    for (args, code, text) in cases {
        fails(&[&good, *args].concat(), *code, &[text]);
    }
    fails(&["run", "--library", "/no/such.so", "--", "true"], 3, &["/no/such.so", "SRD_LIBRARY"]);
    fails(&["run", "--library", &text, "--", "true"], 3, &["no library"]);
    fails(&["run", "--library", &library, "--addr", "192.0.2.77", "--", "true"], 3, &["not an address of this host"]);
    fails(
        &["run", "--library", &library, "--addr", "no-such-if", "--", "true"],
        3,
        &["--addr (SRD_ADDR) has 'no-such-if', which is no interface of this host"],
    );
    let broadcast = ["run", "--library", &library, "--addr", "127.255.255.255", "--", "true"];
    fails(&broadcast, 3, &["127.255.255.255, which is the broadcast address"]);
    let each = began.elapsed() / (cases.len() as u32 + 5);
    assert!(each < Duration::from_secs(2), "{each:?} for each");
}

/// A shell in name spaces of its own, with the network and the mounts to itself; `None` where that is not permitted.
fn apart(script: &str) -> Option<Output> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-r", "-n", "-m", "sh", "-ec", script]).env_remove("LD_PRELOAD").env_remove("SRD_LIBRARY");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().ok().map(finish)
    };
    if shell("ip link set lo up").is_none_or(|done| done.code != Some(0)) {
        eprintln!("skipped: needs unshare -r -n -m (name spaces of users, networks and mounts) and ip");
        return None;
    }
    shell(script)
}

/// What a program sees that looks for RDMA devices, and of what was there before.
const LOOK: &str = "
    ls /dev/infiniband /sys/class/infiniband
    for device in /dev/infiniband/*; do test -c $device -a -r $device -a -w $device; done
    cat /sys/class/infiniband_verbs/uverbs1/ibdev /sys/class/infiniband/rdmap1s6/ports/1/link_layer
    for device in /sys/class/infiniband/*; do test -d $device/device/; done
    cat /sys/class/net/lo/address
    echo > /dev/null
    test -d /dev/fd/ -a -d /dev/shm
    id -u";

#[test]
fn run_device_files_are_there_for_the_program_alone() {
    let shop = Workshop::new();
    if apart("true").is_none() {
        return;
    }
    let seen = "/dev/infiniband:\nuverbs0\nuverbs1\n\n/sys/class/infiniband:\nrdmap0s6\nrdmap1s6\n\
        rdmap1s6\nUnspecified\n00:00:00:00:00:00\n";
    let look = ["sh", "-ec", LOOK];
    let user = nix::unistd::geteuid();
    let done = output(shop.run(&["--devices", "2", "--device-files"], &look));
    assert_eq!((done.code, done.stdout), (Some(0), format!("{seen}{user}\n")), "{}", done.stderr);
    // Started by one that has such files, a program has its own alone.
    let srd = env!("CARGO_BIN_EXE_srd");
    let inner = [srd, "run", "--device-files", "--devices", "1", "--", "ls", "/sys/class/infiniband"];
    let done = output(shop.run(&["--devices", "2", "--device-files"], &inner));
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "rdmap0s6\n"), "{}", done.stderr);
    // Whoever may not make such a namespace gets one of users, too, and stays who he is.
    let options = format!("--library {} --runtime-dir {}", shop.text("libsrd_verbs.so"), shop.text("apart"));
    let unprivileged = format!(
        "setpriv --bounding-set=-sys_admin {srd} run {options} --devices 2 --device-files -- sh -ec '{LOOK}'
         unshare --map-user=1000 --map-group=1000 --keep-caps {srd} run {options} --devices 2 --device-files -- id -ur"
    );
    let done = apart(&unprivileged).expect("as before");
    assert_eq!((done.code, done.stdout), (Some(0), format!("{seen}0\n1000\n")), "{}", done.stderr);
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the kernel's list");
    assert!(!mounts.lines().any(|line| line.starts_with("srd ")), "{mounts}");

    let forbidden = format!(
        "echo 0 > /proc/sys/user/max_mnt_namespaces; {srd} run {options} --device-files -- echo ran || echo code $?"
    );
    let done = apart(&forbidden).expect("as before");
    assert_eq!(done.stdout, "code 3\n", "{done:?}");
    let remedy = "mkdir -p /dev/infiniband && ln -s /dev/null /dev/infiniband/uverbs0";
    assert!(done.stderr.contains("--device-files") && done.stderr.contains(remedy), "{done:?}");
}

#[test]
fn run_works_without_proc_if_it_is_told_the_library() {
    let srd = env!("CARGO_BIN_EXE_srd");
    let Some(done) = apart(&format!("mount -t tmpfs none /proc; exec {srd} run --addr 127.0.0.1 -- true")) else {
        return;
    };
    done.fails(3, &["cannot tell where this command is", "--library FILE (SRD_LIBRARY)"]);
}

/// Another one serves if that was not chosen; that it is refused is what matters.
#[test]
fn a_runtime_directory_that_cannot_be_written_is_refused() {
    let shop = Workshop::new();
    let (srd, library, dir) = (env!("CARGO_BIN_EXE_srd"), shop.text("libsrd_verbs.so"), shop.text("r"));
    let mounted = format!("mkdir {dir}; mount -t tmpfs -o mode=700 none {dir}; mount -o remount,ro {dir}");
    let run = format!("exec {srd} run --library {library} --runtime-dir {dir} --addr 127.0.0.1 -- true");
    let Some(done) = apart(&format!("ip link set lo up; {mounted}; {run}")) else { return };
    done.fails(3, &["cannot use the runtime directory", "it cannot be written: Read-only file system"]);
}

#[test]
fn loopback_that_is_down_is_told_at_once() {
    let shop = Workshop::new();
    let srd = env!("CARGO_BIN_EXE_srd");
    let options =
        format!("--addr 127.0.0.1 --library {} --runtime-dir {}", shop.text("libsrd_verbs.so"), shop.text("r"));
    for command in [format!("devices {options}"), format!("run {options} -- echo")] {
        for (state, told) in [("up", false), ("down", true)] {
            let script = format!("ip link set lo up; ip link set lo {state}; exec {srd} {command}");
            let Some(done) = apart(&script) else { return };
            assert_eq!(done.code, Some(0), "{done:?}");
            assert_eq!(
                done.stderr.contains("127.0.0.1 to itself does not arrive; bring the loopback"),
                told,
                "{done:?}"
            );
        }
    }
}

#[test]
fn devices_are_what_was_asked_for() {
    let output = run(&["devices", "--addr", "127.0.0.1,127.0.0.2", "--profile", "efa2", "--max-ah", "64", "--json"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output:?}");
    let report = output.json();
    is_documented(&report);
    let devices = report["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 2);
    for (device, name, ip) in [(&devices[0], "rdmap0s6", "127.0.0.1:"), (&devices[1], "rdmap1s6", "127.0.0.2:")] {
        assert_eq!((&device["name"], &device["profile"]), (&Value::from(name), &Value::from("efa2")));
        assert_eq!((&device["part_id"], &device["limits"]["max_ah"]), (&Value::from(0xefa2), &Value::from(64)));
        assert!(device["address"].as_str().is_some_and(|a| a.starts_with(ip)), "{device:#}");
        assert!(device["gid"].as_str().is_some_and(|g| g.starts_with("fe80::200:7f00:")), "{device:#}");
    }
    let told = run(&["devices", "--addr", "127.0.0.1", "-v"]).stderr;
    for text in ["INFO opened", "device=rdmap0s6", "address=127.0.0.1:", "driver=\"udp\"", "profile=efa1"] {
        assert!(told.contains(text), "no '{text}' in {told}");
    }
    assert!(!told.contains('\x1b'), "colours, although it is no terminal: {told}");
    let text = run(&["devices", "--addr", "127.0.0.1"]).stdout;
    assert!(text.contains("rdmap0s6") && text.contains("127.0.0.1, UDP port any"), "{text}");
    fails(
        &["devices", "--addr", "192.0.2.77", "--json"],
        3,
        &["rdmap0s6 cannot be opened", "not an address of this host"],
    );
    fails(&["devices", "--devices", "0"], 2, &["from 1 to 64"]);
    let device = &run(&["devices", "--addr", "127.0.0.1", "--pus", "4", "--json"]).json()["devices"][0];
    assert_eq!((&device["pus"], devices[0]["pus"].as_u64()), (&Value::from(4), Some(1)));
    assert!(device["gid"].as_str().is_some_and(|g| g.starts_with("fe80::202:7f00:")), "{device:#}");
    let text = run(&["devices", "--addr", "127.0.0.1", "--pus", "2"]).stdout;
    assert!(text.contains("UDP any 2 ports") && text.contains("2 processing units"), "{text}");
    fails(&["devices", "--addr", "::1", "--pus", "2"], 2, &["--addr ::1 and --pus 2", "use IPv4"]);
    fails(&["devices", "--pus", "3"], 2, &["a power of two from 1 to 16"]);
}

#[test]
fn devices_take_the_address_that_others_reach() {
    let srd = env!("CARGO_BIN_EXE_srd");
    let shell = |script: String| Command::new("unshare").args(["-r", "-n", "sh", "-ec", &script]).output();
    if !shell("ip link set lo up".into()).is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: needs unshare -r -n (user and network namespaces) and ip");
        return;
    }
    // Loopback alone; then an interface without a default route, as between two namespaces.
    for (setup, address) in [
        ("", "127.0.0.1:"),
        (
            "ip link add va type veth peer name vb; ip addr add 10.99.1.1/24 dev va; ip link set va up; ip link set vb up;",
            "10.99.1.1:",
        ),
    ] {
        let script = format!("ip link set lo up; {setup} exec {srd} devices --json");
        let done = shell(script).expect("run unshare");
        let report: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        assert!(report["devices"][0]["address"].as_str().is_some_and(|a| a.starts_with(address)), "{report:#}");
    }
}

#[test]
fn an_address_that_no_device_can_have_is_named() {
    let srd = env!("CARGO_BIN_EXE_srd");
    let setup = "ip link set lo up; ip link add va type veth peer name vb; ip link set va up; ip link set vb up;
        ip addr add fd00::242:ac11:2/64 dev va nodad; mount -t tmpfs none /dev/shm;";
    let Some(done) = apart(&format!("{setup} exec {srd} devices --addr va")) else { return };
    done.fails(3, &["--addr (SRD_ADDR) has interface va, whose address cannot be used: fd00::242:ac11:2 does not fit"]);
    // Without an option there is loopback, and why.
    let done = apart(&format!("{setup} exec {srd} doctor --json")).expect("it worked above");
    let report = done.json();
    let remedy = finding(&report, "address")["remedy"].to_string();
    assert!(remedy.contains("another address: that of va cannot be used: fd00::242:ac11:2 does not fit"), "{remedy}");
}

/// The finding of a check.
fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().find(|f| f["check"] == check).unwrap_or_else(|| panic!("no '{check}' in {report:#}"))
}

#[test]
fn doctor_finds_what_is_wrong() {
    let shop = Workshop::new();
    let (library, runtime) = (shop.text("libsrd_verbs.so"), shop.text("runtime"));
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    let program = program.to_str().expect("UTF-8");
    let good = ["doctor", "--library", &library, "--runtime-dir", &runtime, "--addr", "127.0.0.1", "--json"];
    let began = Instant::now();
    let output = run(&[&good[..], &["--", program]].concat());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(output.code, Some(0), "{output:?}");
    let report = output.json();
    is_documented(&report);
    assert_eq!(report["ok"], Value::Bool(true));
    for check in
        ["options", "library", "address", "GSO", "GRO", "buffers", "ports", "firewall", "paths", "runtime", "files"]
    {
        names(finding(&report, check), &["state", "found"]);
    }
    let is_there = Path::new("/dev/infiniband/uverbs0").exists();
    let ucx = finding(&report, "UCX")["found"].to_string();
    assert_eq!(ucx.contains("sees no device without a character device /dev/infiniband/uverbs0"), !is_there, "{ucx}");
    assert!(
        finding(&report, "program")["found"].as_str().is_some_and(|f| f.ends_with("gets the library")),
        "{report:#}"
    );

    // Each thing that is wrong is told, with a remedy.
    let mut command = command(&[&good[..7], &["--json", "--paths", "0", "--", "no-such-program"]].concat());
    command.env("SYSFS_PATH", "/nowhere").env("SRD_PATH", "1");
    let output = finish(command.spawn().expect("start"));
    assert_eq!(output.code, Some(1), "{output:?}");
    let report = output.json();
    for (check, state) in [("options", "fail"), ("sysfs", "warn")] {
        assert_eq!(finding(&report, check)["state"], Value::from(state), "{report:#}");
        names(finding(&report, check), &["remedy"]);
    }
    let text = report.to_string();
    assert!(text.contains("SRD_PATHS?"), "{text}");

    // A range of which all ports are taken.
    let pair = (20_000..30_000).step_by(2).find_map(|first: u16| {
        let both = [first, first + 1].map(|port| UdpSocket::bind(("127.0.0.1", port)));
        let [Ok(one), Ok(other)] = both else { return None };
        Some((first, one, other))
    });
    let (first, _one, other) = pair.expect("two free ports");
    let ports = ["--paths", "1", "--path-pool", "1", "--ports", &format!("{first}-{}", first + 1)];
    let output = run(&[&good[..], &ports].concat());
    assert_eq!(output.code, Some(1), "{output:?}");
    assert_eq!(finding(&output.json(), "ports")["state"], Value::from("fail"), "{output:?}");
    // One of the ports is taken, so that they do not suffice.
    drop(other);
    let report = run(&[&good[..], &ports].concat()).json();
    let ports = finding(&report, "ports");
    assert_eq!(ports["state"], Value::from("warn"), "{report:#}");
    assert!(ports["found"].to_string().contains(&format!("1 of UDP {first} to {} are free", first + 1)), "{ports}");
    // Nor do files, which has nothing to do with the network.
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 6; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_srd")]).args(good);
    few.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let report = self::output(few).json();
    assert!(finding(&report, "address")["remedy"].to_string().contains("ulimit -n"), "{report:#}");
    for (options, says) in [
        (&["--ports", "40000-40064", "--devices", "3"][..], "3 devices need 195"),
        (&["--log-file", "/no/such/dir"], "cannot be written"),
    ] {
        let output = run(&[&good[..], options].concat());
        assert_eq!(output.code, Some(1), "{output:?}");
        let finding = finding(&output.json(), "options")["found"].to_string();
        assert!(finding.contains(says), "{finding}");
    }

    fails(&["doctor", "--jsn"], 2, &["unexpected argument '--jsn' found"]);
    let output = run(&["doctor", "--library", "/no/such.so"]);
    assert_eq!(output.code, Some(1));
    assert!(output.stdout.contains("FAIL  library") && output.stdout.contains("does not work here"), "{output:?}");
}

#[test]
fn doctor_looks_at_the_program() {
    let shop = Workshop::new();
    let (library, runtime) = (shop.text("libsrd_verbs.so"), shop.text("runtime"));
    let options = ["doctor", "--library", &library, "--runtime-dir", &runtime, "--addr", "127.0.0.1", "--json", "--"];
    let about = |program: &Path| command(&[&options[..], &[program.to_str().expect("UTF-8")]].concat());
    let doctor = |program: &Path| output(about(program)).json();
    let under = |name: &str, value: &str, program: &Path| {
        let mut command = about(program);
        command.env(name, shop.at(value));
        output(command).json()
    };
    for (name, flag) in [("static", "-static"), ("foreign", "-Wl,--dynamic-linker=/no/loader.so")] {
        let report = doctor(&shop.cc(name, "int main(void) { return 0; }", &[flag]));
        assert_eq!(finding(&report, "program")["state"], Value::from("fail"), "{report:#}");
    }
    // It is not run: it would leave a trace.
    let trace = shop.text("trace");
    let source = format!("#include <stdio.h>\nint main(void) {{ fopen(\"{trace}\", \"w\"); return 0; }}");
    let report = doctor(&shop.cc("plain", &source, &[]));
    assert!(finding(&report, "program")["found"].to_string().contains("loads no verbs"), "{report:#}");
    let script = shop.at("script");
    fs::write(&script, format!("#!/bin/sh\ntouch {trace}\n")).expect("write");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(finding(&doctor(&script), "program")["state"], Value::from("ok"));
    // Without a first line that names one, a shell runs it.
    fs::write(&script, format!("touch {trace}\n")).expect("write");
    assert_eq!(finding(&doctor(&script), "program")["state"], Value::from("ok"));
    assert!(!Path::new(&trace).exists());
    let done = output(shop.run(&[], &[script.to_str().expect("UTF-8")]));
    assert_eq!((done.code, done.stderr.as_str(), Path::new(&trace).exists()), (Some(0), "", true), "{done:?}");

    // What is found by LD_LIBRARY_PATH is found under 'srd run', too.
    fs::create_dir(shop.at("extra")).expect("create");
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libextra.so"];
    let extra = shop.cc("extra/libextra.so", "int extra(void) { return 0; }", &shared);
    let needed = ["-Wl,--no-as-needed", extra.to_str().expect("UTF-8")];
    let program = shop.program("extended", "host/libibverbs.so.1", &needed);
    let report = under("LD_LIBRARY_PATH", "extra", &program);
    assert!(finding(&report, "program")["found"].to_string().contains("gets the library"), "{report:#}");
    // Loaders of other C libraries know no variable that keeps them from running the program.
    let loader = shop.at("loader");
    fs::write(&loader, "#!/bin/sh\ntest $1 = --list && echo 'libibverbs.so.1 => /elsewhere/libibverbs.so.1'\n")
        .expect("write");
    fs::set_permissions(&loader, fs::Permissions::from_mode(0o755)).expect("chmod");
    let named = format!("-Wl,--dynamic-linker={}", loader.display());
    let report = doctor(&shop.cc("other", "int main(void) { return 0; }", &[&named]));
    assert!(finding(&report, "program")["found"].to_string().contains("/elsewhere/"), "{report:#}");

    // A library that is loaded in advance wins.
    let program = shop.program("program", "host/libibverbs.so.1", &[]);
    let report = under("LD_PRELOAD", "host/libibverbs.so.1", &program);
    let program = finding(&report, "program");
    assert_eq!(program["state"], Value::from("fail"), "{report:#}");
    assert!(program["found"].to_string().contains("host/libibverbs.so.1"), "{report:#}");
    assert_eq!(program["remedy"], Value::from("take it out of LD_PRELOAD"), "{report:#}");
    // Ours is no other one.
    let program = shop.text("program");
    let srd = [env!("CARGO_BIN_EXE_srd"), "doctor", "--json", "--", &program];
    let report = output(shop.run(&["--also", "libibverbs-1a2b3c4d.so.1"], &srd)).json();
    assert_eq!(finding(&report, "program")["state"], Value::from("ok"), "{report:#}");
}

#[test]
fn explain_by_each_name() {
    let codes = |text: &str| -> Vec<u64> {
        let output = run(&["explain", text, "--json"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        let report = output.json();
        is_documented(&report);
        let statuses = report["statuses"].as_array().expect("a list");
        statuses.iter().map(|s| s["status"].as_u64().expect("a number")).collect()
    };
    for text in ["0xa", "rnr", "REMOTE_ERROR_RNR", "ibv_wc_rnr_retry_exc_err", "FI_ENORX"] {
        assert_eq!(codes(text), [10], "{text}");
    }
    assert_eq!(codes("RESP_TIMEOUT_ERR"), [13, 15], "two statuses have this name");
    // A number may be that of the device or that of verbs.
    assert_eq!([codes("13"), codes("20")], [[13, 10], [13, 15]]);
    let text = run(&["explain", "14"]).stdout;
    assert!(text.contains("REMOTE_ERROR_UNKNOWN_PEER") && text.contains("what to do:"), "{text}");
    let text = run(&["explain", "13"]).stdout;
    assert!(text.contains("REMOTE_ERROR_RNR (vendor_err 10, verbs status 13)"), "{text}");
    assert!(run(&["explain"]).stdout.contains("LOCAL_ERROR_UNREACH_REMOTE"));
    fails(&["explain", "17", "--json"], 2, &["no completion status", "srd explain"]);
}

/// This process, as one that uses a device.
fn publish(dir: &Path, tx_bytes: u64) -> Publisher {
    let (device, addr) = ("rdmap0s6".into(), "127.0.0.1:9".parse().ok());
    let identity = Identity { device, part_id: 0xefa1, gbps: 100, fw_ver: [0, 0, 1, 1], addr, units: 1 };
    let mut publisher = Publisher::new(dir, identity).expect("publish");
    let mut values = Values::default();
    *values.get_mut("tx_bytes").expect("a counter") = tx_bytes;
    publisher.publish(&values).expect("publish");
    publisher
}

#[test]
fn stat_shows_processes_that_run_and_sums_of_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = dir.path().to_str().expect("UTF-8");
    let stat = |args: &[&str]| run(&[&["stat", "--runtime-dir", runtime], args].concat());
    let text = stat(&[]).stdout;
    assert!(text.contains("no device has been used") && text.contains(runtime), "{text}");
    let file = dir.path().join("file");
    fs::write(&file, "no directory\n").expect("write");
    for (name, says) in [(file, "Not a directory"), (dir.path().join("nowhere"), "No such file")] {
        let name = name.to_str().expect("UTF-8");
        fails(&["stat", "--runtime-dir", name, "--json"], 3, &["cannot read the runtime directory", name, says]);
    }
    assert_eq!(stat(&["--json"]).json()["devices"], Value::Array(Vec::new()));

    drop(publish(dir.path(), 1000));
    let running = publish(dir.path(), 234);
    let report = stat(&["--json"]).json();
    is_documented(&report);
    let device = &report["devices"][0];
    assert_eq!((&device["name"], &device["total"]["tx_bytes"]), (&Value::from("rdmap0s6"), &Value::from(1234)));
    let process = &device["processes"][0];
    assert_eq!((&process["pid"], &process["address"]), (&Value::from(std::process::id()), &Value::from("127.0.0.1:9")));
    assert_eq!(process["counters"]["tx_bytes"], Value::from(234));
    assert!(PORT.iter().chain(&DEVICE).all(|name| process["counters"][name].is_u64()));

    let pid = std::process::id().to_string();
    for which in ["rdmap0s6", &pid] {
        let text = stat(&[which]).stdout;
        assert!(text.contains("tx_bytes") && text.contains("1,234") && text.contains(&pid), "{text}");
    }
    assert!(stat(&[]).stdout.contains("all, ever"));
    let (tree, unknown) = (dir.path().join("tree"), ["rdmap9s6", "srd stat"]);
    let sysfs = ["--sysfs", tree.to_str().expect("UTF-8")];
    fails(&[&["stat", "--runtime-dir", runtime, "rdmap9s6"], &sysfs[..]].concat(), 3, &unknown);
    assert!(!tree.exists(), "it is written although there is nothing to show");
    drop(running);
    let report = stat(&["--json"]).json();
    assert_eq!(report["devices"][0]["processes"], Value::Array(Vec::new()));
    assert_eq!(report["devices"][0]["total"]["tx_bytes"], Value::from(1234));
}

#[test]
fn stat_keeps_a_tree_up_to_date() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = dir.path().to_str().expect("UTF-8");
    let tree = dir.path().join("tree");
    let mut running = publish(dir.path(), 5);
    let args = ["stat", "--runtime-dir", runtime, "--sysfs", tree.to_str().expect("UTF-8")];
    let watch = [&args[..], &["--watch", "0.01", "--json"]].concat();
    let mut child = command(&watch).spawn().expect("start");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut next = |want: u64| {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < LIMIT, "{want} is not shown");
            let mut line = String::new();
            out.read_line(&mut line).expect("a line");
            let report: Value = serde_json::from_str(&line).expect("one object in each line");
            if report["devices"][0]["total"]["tx_bytes"] == want {
                return;
            }
        }
    };
    let counter = tree.join("class/infiniband/rdmap0s6/ports/1/hw_counters/tx_bytes");
    next(5);
    assert_eq!(fs::read_to_string(&counter).expect("a counter"), "5\n");
    let mut values = Values::default();
    *values.get_mut("tx_bytes").expect("a counter") = 77;
    running.publish(&values).expect("publish");
    next(77);
    assert_eq!(fs::read_to_string(&counter).expect("a counter"), "77\n");
    signal(child.id(), Signal::SIGINT);
    // What it says until then has to go somewhere.
    std::io::copy(&mut out, &mut std::io::sink()).expect("read the rest");
    assert_eq!(child.wait().expect("wait").code(), Some(130));
    assert_eq!(fs::read_to_string(tree.join("class/infiniband/rdmap0s6/device/vendor")).expect("a file"), "0x1d0f\n");
}

#[test]
fn stat_makes_nothing_up_for_while_it_was_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let period = Duration::from_millis(100);
    let args = ["stat", "--runtime-dir", dir.path().to_str().expect("UTF-8"), "--watch", "0.1", "--json"];
    let began = Instant::now();
    let mut child = command(&args).spawn().expect("start");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = || out.read_line(&mut String::new()).expect("a line");
    line();
    signal(child.id(), Signal::SIGSTOP);
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("it stops");
    // As if somebody had typed Ctrl-Z, and then done something else.
    let stopped = Instant::now();
    std::thread::sleep(10 * period);
    let stopped = stopped.elapsed();
    signal(child.id(), Signal::SIGCONT);
    for _ in 0..6 {
        line();
    }
    let ran = began.elapsed() - stopped;
    child.kill().expect("kill it");
    child.wait().expect("wait");
    // One that was due while it was stopped may come at once.
    assert!(ran >= 5 * period, "seven looks within {ran:?}");
}

#[test]
fn stat_ends_when_nobody_reads_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = dir.path().to_str().expect("UTF-8");
    for json in [&[][..], &["--json"]] {
        let args = [&["stat", "--runtime-dir", runtime, "--watch", "0.01"], json].concat();
        let mut child = command(&args).spawn().expect("start");
        // Closed once a line has come.
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut String::new()).expect("a line");
        drop(out);
        let output = finish(child);
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output:?}");
    }
}

#[test]
fn the_real_library_from_run_to_stat() {
    // The real one, beside the command.
    let library = library::build(Path::new(env!("CARGO_BIN_EXE_srd")).parent().expect("a directory"));
    let shop = Workshop::new();
    let program = shop.cc("verbs", VERBS, &[library.to_str().expect("UTF-8")]);
    let runtime = shop.text("runtime");
    // Without --library: it is found beside the command.
    let options = ["--runtime-dir", &runtime, "--addr", "127.0.0.1", "--devices", "2", "--max-pd", "7"];
    let run_it = [&["run"][..], &options, &["--", program.to_str().expect("UTF-8")]].concat();
    let start = || {
        let mut child = command(&run_it).stdin(Stdio::piped()).spawn().expect("start");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line.trim_end(), "rdmap0s6 rdmap1s6", "{:?}", child.try_wait());
        child
    };
    let stat = || run(&["stat", "--runtime-dir", &runtime, "--json"]).json();
    let pids = |report: &Value| -> Vec<u64> {
        let processes = report["devices"][1]["processes"].as_array().expect("a list");
        processes.iter().map(|p| p["pid"].as_u64().expect("a number")).collect()
    };

    let (mut ends, mut dies) = (start(), start());
    let mut want = [u64::from(ends.id()), u64::from(dies.id())];
    want.sort_unstable();
    assert_eq!(pids(&stat()), want);
    dies.kill().expect("kill it");
    dies.wait().expect("wait");
    assert_eq!(pids(&stat()), [u64::from(ends.id())]);
    drop(ends.stdin.take());
    assert_eq!(ends.wait().expect("wait").code(), Some(0));
    assert_eq!(pids(&stat()), [0; 0]);

    // The library tells on its own what it opens, and what looks like an option and is none, once.
    let mut command = command(&[&["run", "--log", "info"], &run_it[1..]].concat());
    command.env("SRD_PATH", "1");
    let done = output(command);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("INFO opened device=rdmap1s6 address=127.0.0.1:"), "{done:?}");
    let warning = "WARN SRD_PATH is no option of srd; do you mean SRD_PATHS?";
    assert_eq!(done.stderr.matches(warning).count(), 1, "{done:?}");

    // Nor does a program end because it may not write files: it has no counters then.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_srd")]).args(&run_it);
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = output(limited);
    assert_eq!((done.code, done.stdout.trim_end()), (Some(0), "rdmap0s6 rdmap1s6"), "{done:?}");
    assert!(done.stderr.contains("counters are not published") && done.stderr.contains("ulimit -f"), "{done:?}");

    // Options that make no sense never get as far as the program; without 'srd run', the library tells.
    let mut bare = Command::new(&program);
    bare.env("LD_LIBRARY_PATH", shop.at("links")).env("SRD_PATHS", "0").env("SRD_RUNTIME_DIR", &runtime);
    fs::create_dir(shop.at("links")).expect("create");
    symlink(&library, shop.at("links/libibverbs.so.1")).expect("link");
    let done = output({
        bare.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        bare
    });
    assert!(done.stderr.contains("SRD_PATHS=0 must be a number from 1 to 256"), "{done:?}");
}

#[test]
fn help_has_every_option() {
    let help = run(&["run", "--help"]).stdout;
    for option in verbs_shim::options::OPTIONS {
        assert!(help.contains(&format!("--{} <", option.name)) && help.contains(&option.variable()), "{option:?}");
    }
}
