//! Our endpoint against another implementation of `docs/protocol.md`, in Python, that was written from that page alone.
//!
//! `interop/wire.py` is its codec, `interop/endpoint.py` its state machine, `interop/network.py` its sockets, behind a network
//! that loses, doubles and reorders in both directions as a seed says, and `interop/cases.py` what it does here. Whatever our side
//! sends has to please `interop/judge.py`, too. A case is a process of its own; when a test fails, its arguments, with the seed,
//! and its packet log are printed.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use srd::udp::{Endpoint, Options, SendError, UdpOptions, WaitMode};
use srd::{Config, Failure, Stats};
use srd_core::{Checksum, Span};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";
const BAD_NETWORK: &str = "--loss 0.05 --copy 0.1 --hold 0.2";
/// Sizes of messages: none, around blocks and packets, and some packets long.
const SIZES: [usize; 13] = [0, 1, 2, 63, 64, 65, 500, 1024, 1150, 1200, 4096, 10_000, 40_001];
/// Whatever takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A process of the other implementation. If this one is killed, an echo ends with its standard input, other cases soon.
struct Python {
    child: Child,
    about: String,
    lines: mpsc::UnboundedReceiver<String>,
    log: File,
}

impl Python {
    /// Starts a case with these words as arguments.
    fn start(case: &str, words: &str) -> Python {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
        let log = tempfile::tempfile().expect("a file for the packet log");
        let mut child = Command::new("python3")
            .args(["-B", "cases.py", case])
            .args(words.split_whitespace())
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone().expect("another handle of the file"))
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start python3 (`./x setup` installs it): {e}"));
        let (tell, lines) = mpsc::unbounded_channel();
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Python { child, about: format!("{case} {words}"), lines, log }
    }

    /// Starts an echo; also its address.
    async fn serve(words: &str) -> (Python, SocketAddr) {
        let mut python = Python::start("serve", words);
        let address = python.address().await;
        (python, address)
    }

    /// The address that its first line tells.
    async fn address(&mut self) -> SocketAddr {
        let line = self.line().await.expect("a first line");
        let (ip, port) = line.split_once(' ').expect("address and port");
        SocketAddr::new(ip.parse().expect("an address"), port.parse().expect("a port"))
    }

    /// The next line that it says, `None` at the end.
    async fn line(&mut self) -> Option<String> {
        soon("a line", self.lines.recv()).await
    }

    /// Waits for a line.
    async fn says(&mut self, wanted: &str) {
        while let Some(line) = self.line().await {
            if line == wanted {
                return;
            }
        }
        panic!("{} ended before it said `{wanted}`", self.about);
    }

    /// Tells an echo to do something, and waits until it has.
    async fn does(&mut self, command: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{command}").expect("tell python");
        let word = command.split(' ').next().expect("split gives one part at least");
        self.says(&format!("done {word}")).await;
    }

    /// Waits until it ends by itself, in success.
    async fn succeeds(mut self) {
        while self.line().await.is_some() {}
        let status: ExitStatus = self.child.wait().expect("wait for python");
        assert!(status.success(), "{}: {status}", self.about);
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let mut log = String::new();
            let read = self.log.rewind().and_then(|()| self.log.read_to_string(&mut log));
            let about = format!("cases.py {}", self.about);
            eprintln!(
                "--- packet log of {about} {}\n{log}--- end of {about}",
                read.err().map_or(String::new(), |e| e.to_string())
            );
        }
    }
}

/// A process of ours that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fails a test that hangs.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// An endpoint of ours. Its peers may be descheduled for long, so it is patient.
fn endpoint(address: &str, change: impl FnOnce(&mut Options)) -> Arc<Endpoint> {
    let mut options = Options {
        protocol: Config { peer_timeout: Span::from_secs(20), ..Config::default() },
        driver: UdpOptions { wait: WaitMode::Sleep, ..UdpOptions::default() },
        ..Options::default()
    };
    change(&mut options);
    Arc::new(Endpoint::bind(address.parse().expect("an address"), options).expect("an endpoint"))
}

/// Sends back what comes, until the endpoint is closed.
fn echo(endpoint: &Arc<Endpoint>) {
    let endpoint = endpoint.clone();
    tokio::spawn(async move {
        while let Some(message) = endpoint.recv().await {
            let endpoint = endpoint.clone();
            // The other side may be gone by now, which it notices itself.
            tokio::spawn(async move { endpoint.send_to(message.from, message.data).await });
        }
    });
}

/// Runs a case against an echo of ours, whose counters it gives.
async fn against_echo(case: &str, words: &str, change: impl FnOnce(&mut Options)) -> Stats {
    let address = if words.contains("::1") { V6 } else { V4 };
    let ours = endpoint(address, change);
    echo(&ours);
    Python::start(case, &format!("--peer {} {words}", ours.local_addr())).succeeds().await;
    stats(&ours).await
}

async fn stats(ours: &Endpoint) -> Stats {
    soon("counters", ours.stats()).await.expect("the endpoint runs").protocol
}

/// What our side thinks of all that the other one sent.
fn blameless(stats: &Stats) {
    assert_eq!((stats.rx_malformed, stats.rx_bad_checksum, stats.rx_violations), (0, 0, 0), "{stats:?}");
}

/// Message number `n`.
fn message(n: usize, size: usize) -> Bytes {
    (0..size).map(|k| (n * 131 + k * 7 + k / 251) as u8).collect()
}

/// Sends messages of these sizes, all at once, and waits until each is delivered, and has come back once.
async fn exchange(ours: &Arc<Endpoint>, to: SocketAddr, sizes: impl IntoIterator<Item = usize>) {
    let mut sent: Vec<_> = sizes.into_iter().enumerate().map(|(n, size)| message(n, size)).collect();
    let mut deliveries = JoinSet::new();
    for data in sent.clone() {
        let ours = ours.clone();
        deliveries.spawn(async move { ours.send_to(to, data).await });
    }
    while let Some(outcome) = soon("delivery", deliveries.join_next()).await {
        outcome.expect("a task").expect("delivery");
    }
    let mut back = Vec::new();
    while back.len() < sent.len() {
        let message = soon("the echo", ours.recv()).await.expect("a message");
        assert_eq!(message.from, to);
        back.push(message.data);
    }
    sent.sort();
    back.sort();
    assert!(sent == back, "sent {:?}, came back {:?}", lengths(&sent), lengths(&back));
}

fn lengths(messages: &[Bytes]) -> Vec<usize> {
    messages.iter().map(Bytes::len).collect()
}

/// Exchanges messages one by one, many at once, and closes; nothing comes twice. Gives our counters.
async fn against_serve(words: &str, change: impl FnOnce(&mut Options)) -> Stats {
    let (mut python, to) = Python::serve(words).await;
    let ours = endpoint(if to.is_ipv4() { V4 } else { V6 }, change);
    for size in SIZES {
        exchange(&ours, to, [size]).await;
    }
    exchange(&ours, to, SIZES.into_iter().chain(0..100)).await;
    let stats = stats(&ours).await;
    blameless(&stats);
    soon("closing", ours.close()).await.expect("an orderly end");
    assert_eq!(ours.recv().await, None, "a message came twice");
    python.says("disconnected").await;
    stats
}

/// A message that does not arrive.
async fn fails(ours: &Endpoint, to: SocketAddr, size: usize) -> SendError {
    soon("an outcome", ours.send_to(to, message(0, size))).await.expect_err("it cannot arrive")
}

/// Starts a case that waits for us to open the connection, and has delivered a message to it.
async fn we_begin(case: &str) -> (Arc<Endpoint>, Python, SocketAddr) {
    let ours = endpoint(V4, |_| {});
    let mut python = Python::start(case, &format!("--peer {}", ours.local_addr()));
    let to = python.address().await;
    soon("delivery", ours.send_to(to, message(0, 5000))).await.expect("delivery");
    (ours, python, to)
}

#[test]
fn what_python_cites_stands_in_the_document() {
    let document = include_str!("../docs/protocol.md");
    let is_id = |text: &str| {
        text.split_once('-').is_some_and(|(area, number)| {
            !area.is_empty()
                && area.bytes().all(|b| b.is_ascii_uppercase())
                && !number.is_empty()
                && number.bytes().all(|b| b.is_ascii_digit())
        })
    };
    let mut cited = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop")).expect("the directory")
    {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "py") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a text");
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(|word| is_id(word)) {
            assert!(document.contains(&format!("**[{word}]**")), "{}: {word}", path.display());
            cited += 1;
        }
    }
    assert!(cited > 150, "only {cited} found");
}

#[tokio::test]
async fn golden_vectors_mean_the_same() {
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/srd-core/tests/vectors");
    let mut python = Python::start("vectors", &format!("--directory {vectors}"));
    assert_eq!(python.line().await, None);
    python.succeeds().await;
}

#[tokio::test]
async fn python_refuses_what_must_be_refused() {
    Python::start("refusals", "").succeeds().await;
}

#[tokio::test]
async fn rust_discards_what_must_be_discarded() {
    against_echo("strangers", "", |_| {}).await;
}

#[tokio::test]
async fn rust_acknowledges_no_violation() {
    let stats = against_echo("violations", "", |_| {}).await;
    assert_eq!(stats.rx_violations, 9, "{stats:?}");
}

#[tokio::test]
async fn python_client_rust_server() {
    blameless(&against_echo("exchange", "", |_| {}).await);
}

#[tokio::test]
async fn rust_client_python_server() {
    against_serve("", |_| {}).await;
}

#[tokio::test]
async fn ipv6_both_ways() {
    blameless(&against_echo("exchange", "--ip ::1", |_| {}).await);
    against_serve("--ip ::1", |_| {}).await;
}

#[tokio::test]
async fn either_side_asks_for_checksums() {
    let ask = |options: &mut Options| options.protocol.checksum = Checksum::Crc32c;
    blameless(&against_echo("exchange", "", ask).await);
    against_serve("--options {\"features\":1}", |_| {}).await;
    against_echo("violations", "", ask).await;
}

#[tokio::test]
async fn numbers_wrap() {
    let first = |options: &mut Options| options.protocol.first_number = Some(u32::MAX - 20);
    let words = "--options {\"first\":4294967285}";
    blameless(&against_echo("exchange", words, first).await);
    against_serve(&format!("{words} {BAD_NETWORK}"), first).await;
}

#[tokio::test]
async fn python_client_over_a_bad_network() {
    for seed in 1..=3 {
        blameless(&against_echo("exchange", &format!("--seed {seed} {BAD_NETWORK}"), |_| {}).await);
    }
}

#[tokio::test]
async fn rust_client_over_a_bad_network() {
    for seed in 1..=3 {
        let stats = against_serve(&format!("--seed {seed} {BAD_NETWORK}"), |_| {}).await;
        assert!(stats.retransmits > 0 && stats.duplicates > 0, "the network was good: {stats:?}");
    }
}

#[tokio::test]
async fn two_idle_ends_fall_silent_when_everything_is_doubled() {
    blameless(&against_echo("silence", "--copy 1 --hold 0.5", |_| {}).await);
}

#[tokio::test]
async fn rust_is_not_ready() {
    for network in ["", BAD_NETWORK] {
        let ours = endpoint(V4, |options| options.receive_budget = 20_000);
        let mut python = Python::start("not_ready", &format!("--peer {} {network}", ours.local_addr()));
        python.says("turned away").await;
        echo(&ours);
        python.succeeds().await;
        blameless(&stats(&ours).await);
    }
}

#[tokio::test]
async fn python_is_not_ready() {
    for network in ["", BAD_NETWORK] {
        let (_python, to) = Python::serve(&format!("--turn-away 0.5 {network}")).await;
        let ours = endpoint(V4, |_| {});
        exchange(&ours, to, SIZES.into_iter().chain(0..100)).await;
        // It refuses messages of this size.
        assert_eq!(fails(&ours, to, 7777).await, SendError::Failed(Failure::Refused(33)));
        exchange(&ours, to, [10, 10_000]).await;
        blameless(&stats(&ours).await);
    }
}

#[tokio::test]
async fn few_messages_may_be_half_here() {
    let few = |options: &mut Options| options.protocol.max_partial_messages = 2;
    blameless(&against_echo("exchange", "--sizes [5000,6000,7000,8000,9000]", few).await);
    // As the sender that knows it has no more, nothing is turned away.
    assert_eq!(against_serve("--options {\"partials\":1}", |_| {}).await.rnr, 0);
}

#[tokio::test]
async fn windows_are_kept() {
    let narrow = |options: &mut Options| (options.protocol.packet_window, options.protocol.message_window) = (64, 64);
    blameless(&against_echo("exchange", "--options {\"datagram\":512}", narrow).await);
    against_serve(&format!("--options {{\"packets\":64,\"messages\":64}} {BAD_NETWORK}"), |_| {}).await;
}

#[tokio::test]
async fn messages_may_be_too_long() {
    against_echo("too_long", "--sizes [3000]", |options| options.protocol.max_message = 3000).await;
    let (_python, to) = Python::serve("--options {\"message\":3000}").await;
    let ours = endpoint(V4, |_| {});
    assert_eq!(fails(&ours, to, 3001).await, SendError::Failed(Failure::TooLong { max: 3000 }));
    exchange(&ours, to, [3000]).await;
}

#[tokio::test]
async fn long_datagrams_may_get_lost() {
    let stats = against_serve("--options {\"datagram\":9000} --longest 600", |_| {}).await;
    assert!(stats.mtu_reductions > 0, "{stats:?}");
}

#[tokio::test]
async fn python_withdraws_messages() {
    blameless(&against_echo("withdraw", "", |_| {}).await);
}

#[tokio::test]
async fn both_open_at_once() {
    both_open("crossing").await;
    both_open("both_open").await;
}

async fn both_open(case: &str) {
    let (ours, python, to) = we_begin(case).await;
    // Back goes what came, and a message of our own.
    let data = soon("a message", ours.recv()).await.expect("a message").data;
    soon("delivery", ours.send_to(to, data)).await.expect("delivery");
    python.succeeds().await;
}

#[tokio::test]
async fn cookies_are_good_for_one_thing() {
    against_echo("cookies", "", |_| {}).await;
}

#[tokio::test]
async fn forgeries_change_nothing() {
    against_echo("forgeries", "", |_| {}).await;
}

#[tokio::test]
async fn who_accepted_waits_for_a_sign() {
    who_accepted("unconfirmed").await;
}

#[tokio::test]
async fn who_accepted_may_be_answered_itself() {
    who_accepted("replaced").await;
}

async fn who_accepted(case: &str) {
    let (ours, python, to) = we_begin(case).await;
    echo(&ours);
    soon("delivery", ours.send_to(to, message(0, 10))).await.expect("delivery");
    python.succeeds().await;
}

#[tokio::test]
async fn python_closes() {
    blameless(&against_echo("take_back", "", |_| {}).await);
    blameless(&against_echo("shut_down", "", |_| {}).await);
}

#[tokio::test]
async fn rust_takes_its_close_back() {
    let idle = |options: &mut Options| options.protocol.idle_timeout = Span::from_millis(50);
    blameless(&against_echo("keep_open", "", idle).await);
}

#[tokio::test]
async fn rust_refuses_to_the_letter() {
    against_echo("turned_away", "", |options| options.protocol.max_message = 3000).await;
}

#[tokio::test]
async fn rust_counts_marks() {
    blameless(&against_echo("marks", "", |_| {}).await);
}

#[tokio::test]
async fn rust_tells_the_share() {
    let link = |options: &mut Options| options.protocol.link_rate = Some(1_000_000_000);
    blameless(&against_echo("asks", "--sizes [1000000]", link).await);
}

#[tokio::test]
async fn python_agrees_to_the_close_of_an_idle_end() {
    let (mut python, to) = Python::serve("").await;
    let ours = endpoint(V4, |options| options.protocol.idle_timeout = Span::from_millis(50));
    for _ in 0..3 {
        exchange(&ours, to, [1, 10_000]).await;
        python.says("disconnected").await;
    }
}

#[tokio::test]
async fn python_shuts_down_under_a_message() {
    let (mut python, to) = Python::serve("").await;
    let ours = endpoint(V4, |_| {});
    exchange(&ours, to, [1]).await;
    python.does("turn-away 1").await;
    let shut_down = async {
        python.says("turned-away").await;
        python.does("shut-down").await;
    };
    let (outcome, ()) = tokio::join!(fails(&ours, to, 100), shut_down);
    assert_eq!(outcome, SendError::Failed(Failure::PeerClosed));
}

#[tokio::test]
async fn python_measures_srd_perf_server() {
    let args = ["perf", "server", "--bind", "127.0.0.1", "--port", "0", "--one-off"];
    let mut server =
        Command::new(env!("CARGO_BIN_EXE_srd")).args(args).stdout(Stdio::piped()).spawn().expect("start srd");
    let mut line = String::new();
    let out = server.stdout.take().expect("it is piped");
    let mut server = Killed(server);
    BufReader::new(out).read_line(&mut line).expect("the first line");
    let address = line.trim_end().rsplit(' ').next().expect("split gives one part at least");
    Python::start("perf_client", &format!("--peer {address} --sizes [3000,50]")).succeeds().await;
    assert!(server.0.wait().expect("wait for srd").success());
}

#[tokio::test]
async fn srd_perf_measures_python() {
    let both_ways = ["bw", "--size", "3000", "--depth", "16", "--bidir"];
    for (test, network) in [(&["lat", "--size", "3000"][..], ""), (&both_ways, BAD_NETWORK)] {
        let mut python = Python::start("perf_server", network);
        let address = python.address().await.to_string();
        let srd = Command::new(env!("CARGO_BIN_EXE_srd"))
            .args([&["perf"], &test[..1], &[&address], &test[1..], &["--iters", "50", "--warmup", "0"]].concat())
            .stdout(Stdio::null())
            .spawn();
        let mut srd = Killed(srd.expect("start srd"));
        python.succeeds().await;
        assert!(srd.0.wait().expect("wait for srd").success(), "{test:?}");
    }
}

#[tokio::test]
async fn python_restarts() {
    against_echo("restart", "", |_| {}).await;
}

#[tokio::test]
async fn python_restarts_under_a_message() {
    let (mut python, to) = Python::serve("").await;
    let ours = endpoint(V4, |_| {});
    for _ in 0..3 {
        exchange(&ours, to, [1]).await;
        python.does("turn-away 1").await;
        let restart = async {
            python.says("turned-away").await;
            python.does("restart").await;
            python.does("turn-away 0").await;
        };
        let (outcome, ()) = tokio::join!(fails(&ours, to, 100), restart);
        assert_eq!(outcome, SendError::Failed(Failure::PeerRestarted));
    }
    exchange(&ours, to, [5, 5000]).await;
}

#[tokio::test]
async fn python_forgets_the_connection() {
    let (mut python, to) = Python::serve("").await;
    let ours = endpoint(V4, |_| {});
    exchange(&ours, to, [1]).await;
    python.does("forget").await;
    // The first packet meets UNKNOWN: the message may fail, or may be sent again, as nothing of it was taken.
    let _ = soon("an outcome", ours.send_to(to, message(0, 0))).await;
    exchange(&ours, to, [5, 5000]).await;
}
