//! An engine on a host of the bed, on a thread of its own that sleeps when there is nothing to do.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use srd::udp::{UdpOptions, WaitMode, Waker};
use srd::xdp::{AnyDriver, DriverChoice, XdpOptions};
use srd::{Config, Driver, Endpoint, Engine, PathState, PeerStats, Stats, Time};
use testbed::Host;

use super::parcels::{Arrival, Departure, Load, Parcels};

/// How to start a node.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) protocol: Config,
    pub(crate) driver: DriverChoice,
    /// Port to be reached at; 0 takes any.
    pub(crate) port: u16,
    /// Marks what this node sends.
    pub(crate) name: u16,
}

/// What a node looks like from inside.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) stats: Stats,
    /// The first peer.
    pub(crate) peer: PeerStats,
}

type Job = Box<dyn FnOnce(&mut Lab) + Send>;

/// A running engine; dropped, it vanishes without a good-bye.
#[derive(Debug)]
pub(crate) struct Node {
    addr: SocketAddr,
    jobs: Option<Sender<Job>>,
    waker: Waker,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What jobs work on.
pub(crate) struct Lab {
    pub(crate) engine: Engine<AnyDriver, Parcels>,
    /// Turns that came so much later than they could have.
    late: Vec<(Instant, Duration)>,
}

/// A turn this much too late is remembered.
const LATE: Duration = Duration::from_millis(1);

impl Node {
    pub(crate) fn start(host: &Host, setup: Setup) -> Node {
        let addr = SocketAddr::from((host.addr(), setup.port));
        let (started, starting) = mpsc::channel();
        let (jobs, queue) = mpsc::channel();
        let run = move || {
            let options =
                UdpOptions { wait: WaitMode::Sleep, source_ports: setup.protocol.path_pool, ..UdpOptions::default() };
            let options = XdpOptions { udp: options, ..XdpOptions::default() };
            let opened = AnyDriver::open(setup.driver, addr, options);
            let (mut driver, _) = opened.expect("a driver on a host of the bed");
            let mut seed = [0; 32];
            getrandom::fill(&mut seed)?;
            let config = setup.protocol.check().expect("a sound configuration");
            let _ = started.send((driver.local_addr(), driver.waker()));
            let endpoint = Endpoint::new(config, driver.local_addr(), seed, driver.now());
            Lab { engine: Engine::new(endpoint, driver, Parcels::new(setup.name)), late: Vec::new() }.run(&queue)
        };
        let thread = host.spawn(run).expect("a thread on a host");
        let (addr, waker) = starting.recv().expect("the driver starts");
        Node { addr, jobs: Some(jobs), waker, thread: Some(thread) }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Runs a job on the engine's thread and waits for its answer.
    pub(crate) fn ask<R: Send + 'static>(&self, job: impl FnOnce(&mut Lab) -> R + Send + 'static) -> R {
        let (tell, answer) = mpsc::channel();
        let job: Job = Box::new(move |lab| drop(tell.send(job(lab))));
        self.jobs.as_ref().expect("running").send(job).expect("the engine runs");
        self.waker.wake();
        answer.recv().expect("the engine runs")
    }

    /// Starts sending to a node.
    pub(crate) fn send(&self, to: SocketAddr, load: Load) {
        self.ask(move |lab| {
            let peer = lab.engine.peer(to).expect("room for a peer");
            lab.engine.upper.begin(peer, load);
        });
    }

    /// Sends nothing new.
    pub(crate) fn stop(&self) {
        self.ask(|lab| lab.engine.upper.stop());
    }

    /// Sends nothing new, and waits until all that was sent is completed. Says whether it was in time.
    pub(crate) fn drain(&self, limit: Duration) -> bool {
        self.stop();
        self.finish(limit)
    }

    /// Waits until the load has been sent and completed. Says whether it was in time.
    pub(crate) fn finish(&self, limit: Duration) -> bool {
        let (tell, idle) = mpsc::channel();
        self.ask(move |lab| lab.engine.upper.on_idle = Some(tell));
        idle.recv_timeout(limit).is_ok()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.ask(|lab| {
            let endpoint = &lab.engine.endpoint;
            let peer = endpoint.peers().next().map(|peer| endpoint.peer_stats(peer));
            Snapshot { stats: *endpoint.stats(), peer: peer.unwrap_or_default() }
        })
    }

    /// Messages that have completed since the last call.
    pub(crate) fn take_departures(&self) -> Vec<Departure> {
        self.ask(|lab| std::mem::take(&mut lab.engine.upper.departures))
    }

    /// Messages that have arrived since the last call.
    pub(crate) fn take_arrivals(&self) -> Vec<Arrival> {
        self.ask(|lab| std::mem::take(&mut lab.engine.upper.arrivals))
    }

    /// How late its latest turn was between two points in time.
    pub(crate) fn lateness(&self, from: Instant, to: Instant) -> Duration {
        self.late_turns(from, to).into_iter().max().unwrap_or_default()
    }

    /// For how long in all it was not run when it could have been, between two points in time.
    pub(crate) fn held_up(&self, from: Instant, to: Instant) -> Duration {
        self.late_turns(from, to).into_iter().sum()
    }

    fn late_turns(&self, from: Instant, to: Instant) -> Vec<Duration> {
        self.ask(move |lab| lab.late.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, late)| *late).collect())
    }

    /// Checks that nothing was delivered twice or damaged.
    pub(crate) fn assert_sound(&self) {
        let (twice, corrupt) = self.ask(|lab| (lab.engine.upper.twice, lab.engine.upper.corrupt));
        assert_eq!((twice, corrupt), (0, 0), "delivered twice, and damaged");
    }

    /// Ends it without a word to anybody, and waits until its sockets are closed.
    pub(crate) fn kill(self) {}
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.waker.wake();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("joined once").expect("the engine's thread does not panic").expect("the driver works");
        }
    }
}

impl Lab {
    fn run(mut self, queue: &Receiver<Job>) -> io::Result<()> {
        let mut due = self.engine.driver.now();
        loop {
            // Held up in the middle of a turn counts, too.
            let now = self.engine.driver.now();
            let late = Duration::from(now.since(due));
            if late > LATE {
                self.late.push((Instant::now(), late));
            }
            due = now;
            match queue.try_recv() {
                Ok(job) => job(&mut self),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
            let moved = self.engine.turn_with(|endpoint, upper, _, now| upper.work(endpoint, now))?;
            while self.engine.endpoint.poll_event().is_some() {}
            if !moved {
                due = due.max(self.engine.endpoint.poll_timeout().unwrap_or(Time::NEVER));
                self.engine.wait(None)?;
            }
        }
    }
}

impl Snapshot {
    /// A table of the paths, a line each.
    pub(crate) fn paths(&self) -> String {
        let mut text = String::from("port  state       srtt us  min us  packets   lost  replaced\n");
        for path in &self.peer.paths {
            let state = match path.state {
                PathState::Unproven => "unproven",
                PathState::Good => "good",
                PathState::Suspect => "suspect",
            };
            text += &format!(
                "{:4}  {state:9} {:9.0} {:7.0} {:8} {:6} {:9}\n",
                path.port.0,
                path.srtt.as_micros_f64(),
                path.min_rtt.as_micros_f64(),
                path.packets,
                path.lost,
                path.replaced,
            );
        }
        text
    }
}
