//! Every constant of the protocol, with its unit, range, default and the reason for the default.

use crate::time::Span;

/// When packets carry a CRC32C over all their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// Leave it to the UDP checksum; still on when the peer asks for it. Handshake packets always carry one.
    Udp,
    /// On every packet, in both directions: for links where the UDP checksum is off or cannot be trusted.
    Crc32c,
}

/// The congestion controller of new connections.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum CcChoice {
    /// The default: a paced rate and an in-flight limit, steered by delay on the majority of paths.
    Delay,
    /// A fixed rate in bytes per second and a fixed window in bytes; for tests and for measuring everything else.
    Fixed {
        /// Pacing rate, bytes per second.
        rate: u64,
        /// In-flight limit, bytes.
        window: u64,
    },
}

/// Constants of the default congestion controller; `docs/congestion-control.md` says how each was chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// Proportional gain: how much the rate gives way at once for each target delay's worth of queue beyond half of
    /// one, 0.0..=1.0.
    pub proportional: f64,
    /// Integral gain: the same for the rate that is remembered, per round trip, 0.0..=1.0.
    pub integral: f64,
    /// Part of the way to its share that a sender goes per round, 0.0..=1.0.
    pub pull: f64,
    /// Additive increase in packets per round trip and round trip, 0.0..=10.0.
    pub additive: f64,
    /// Part of this host's link that is given out to those who send to it, 0.0..=1.0.
    pub headroom: f64,
    /// Random part of the gaps between bursts at low rates, 0.0..=1.0.
    pub jitter: f64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { proportional: 0.15, integral: 0.1, pull: 0.2, additive: 0.15, headroom: 0.9975, jitter: 0.1 }
    }
}

/// Configuration of an [`Endpoint`](crate::Endpoint). [`Config::default`] suits plain hosts over kernel UDP;
/// [`Config::fabric`] suits NIC-grade timing (the simulator, AF_XDP on dedicated cores).
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of paths (source ports) per connection, 1..=256. Default 16: the smallest number that reaches most of a
    /// handful of spines (expected share of S spines hit by N hashed ports: 1-(1-1/S)^N).
    pub paths: u16,
    /// Size of the driver's pool of source ports, `paths..=1024`: connections draw from it, dead paths are replaced from
    /// it. Default 64: four times the paths.
    pub path_pool: u16,
    /// Largest UDP payload to send, in bytes, 512..=9216. Default 8972: a 9,000-byte MTU less IPv4 and UDP headers; the
    /// driver lowers it to what the interface carries and the handshake to what the peer accepts.
    pub max_datagram: u16,
    /// Packets that may be unresolved at once per connection, a power of two in 64..=16384. Default 4096: 36 MB of
    /// 8,972-byte packets, the bandwidth-delay product of 100 Gbit/s over 2.9 ms. Costs 512 B at the receiver and up to
    /// 64 B per packet at the sender, allocated as needed.
    pub packet_window: u32,
    /// Messages that may be in progress at once per connection, a power of two in 64..=32768. Default 16384: 10 million
    /// small messages per second over 1.6 ms. Costs 2 B each at the receiver, allocated as needed.
    pub message_window: u32,
    /// Messages of more than one packet that a peer may have half delivered, 1..=32768; further ones are answered
    /// 'not ready'. Default 1024.
    pub max_partial_messages: u32,
    /// Longest message that is accepted, in bytes. Default 1 GiB, EFA's RDMA limit.
    pub max_message: u32,
    /// Messages queued or in progress per peer at the sender, 1..=1048576; then [`SendError::QueueFull`](crate::SendError). Default 65536.
    pub send_queue: u32,
    /// Peers known at once, 1..=1048576. Default 4096. An incoming handshake beyond it is dropped and counted.
    pub max_peers: u32,

    /// Longest time an acknowledgement waits for company. Default 25 us: below one RTT of a data-centre host.
    pub max_ack_delay: Span,
    /// Packets that force an acknowledgement out, 1..=255. Default 8.
    pub ack_every: u8,
    /// Later packets of the same path acknowledged before a packet counts as lost, 1..=255. Default 3 (RFC 9002), because
    /// of multi-queue NICs and GRO.
    pub reorder_packets: u8,
    /// Shortest time that a packet may be overtaken on its own path before it counts as lost. Default 50 us.
    pub reorder_time: Span,
    /// Clock and scheduling granularity G that timers allow for, before it is measured. Default 200 us for hosts.
    pub granularity: Span,
    /// Floor of the retransmission timeout. Default 1 ms.
    pub rto_min: Span,
    /// Ceiling of the backed-off retransmission timeout. Default 100 ms.
    pub rto_max: Span,
    /// RTT assumed before the first sample. Default 1 ms.
    pub initial_rtt: Span,

    /// Silence after which a connection in use is probed. Default 1 s.
    pub keepalive: Span,
    /// Silence of a probed peer, or age of an unanswered handshake, after which its messages fail. Default 5 s.
    pub peer_timeout: Span,
    /// Time without messages after which a connection closes itself. Default 60 s.
    pub idle_timeout: Span,

    /// First pause after 'receiver not ready'. Default 50 us. Doubles with each attempt, jittered.
    pub rnr_min: Span,
    /// Longest pause after 'receiver not ready'. Default 10 ms.
    pub rnr_max: Span,

    /// Congestion controller.
    pub cc: CcChoice,
    /// Constants of [`CcChoice::Delay`].
    pub tuning: Tuning,
    /// Bytes in flight at the start of a connection. Default 64 KiB on hosts.
    pub initial_window: u32,
    /// The same with a peer at our own address, at least `initial_window`. Default 256 KiB: no network lies in between, and such a
    /// peer shares our cores, so that it may be long until it acknowledges.
    pub local_window: u32,
    /// Floor of the target queueing delay T. Default 100 us on hosts: above the noise of kernel scheduling and batching.
    pub target_delay: Span,
    /// Rate of this host's link in bytes per second, both ways, if known: no connection sends faster, and it is what is
    /// divided among those who send to this host at once. Default `None`: at most 400 Gbit/s, and no advice to senders.
    pub link_rate: Option<u64>,
    /// Bytes that a datagram costs on that link beside itself, 0..=1024. Default 66: IPv4 and UDP headers (28), Ethernet
    /// header and check sequence (18), preamble and gap (20). Tunnels cost more.
    pub wire_overhead: u16,
    /// Time after which a sender that has paused is no longer counted among those who share the link, in halves: it
    /// counts for two to three of these. Default 1 ms: several round trips of a host with a queue.
    pub share_period: Span,
    /// A burst carries at most this much time's worth of the present rate, up to four times as much after a pause of the sender's
    /// own, and always one packet. Default 25 us: small against queues.
    pub burst_time: Span,
    /// A burst carries at most this many bytes, 1..=65000. Default 65000, one segmentation-offload call.
    pub max_burst: u32,

    /// Payload checksum policy.
    pub checksum: Checksum,
    /// First packet number and message id of new connections; `None` draws them at random. Tests set them just below the
    /// wrap.
    pub first_number: Option<u32>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            paths: 16,
            path_pool: 64,
            max_datagram: 8972,
            packet_window: 4096,
            message_window: 16384,
            max_partial_messages: 1024,
            max_message: 1 << 30,
            send_queue: 65536,
            max_peers: 4096,
            max_ack_delay: Span::from_micros(25),
            ack_every: 8,
            reorder_packets: 3,
            reorder_time: Span::from_micros(50),
            granularity: Span::from_micros(200),
            rto_min: Span::from_millis(1),
            rto_max: Span::from_millis(100),
            initial_rtt: Span::from_millis(1),
            keepalive: Span::from_secs(1),
            peer_timeout: Span::from_secs(5),
            idle_timeout: Span::from_secs(60),
            rnr_min: Span::from_micros(50),
            rnr_max: Span::from_millis(10),
            cc: CcChoice::Delay,
            tuning: Tuning::default(),
            initial_window: 64 * 1024,
            local_window: 256 * 1024,
            target_delay: Span::from_micros(100),
            link_rate: None,
            wire_overhead: 66,
            share_period: Span::from_millis(1),
            burst_time: Span::from_micros(25),
            max_burst: 65000,
            checksum: Checksum::Udp,
            first_number: None,
        }
    }
}

impl Config {
    /// Timing for networks and hosts without scheduling noise: the simulator, or dedicated cores with kernel bypass.
    pub fn fabric() -> Config {
        Config {
            paths: 128,
            path_pool: 512,
            max_ack_delay: Span::from_nanos(1_500),
            ack_every: 3,
            reorder_time: Span::from_micros(10),
            granularity: Span::from_micros(2),
            rto_min: Span::from_micros(50),
            rto_max: Span::from_millis(10),
            initial_rtt: Span::from_micros(50),
            initial_window: 16 * 1024,
            target_delay: Span::from_micros(6),
            burst_time: Span::ZERO,
            share_period: Span::from_micros(10),
            ..Config::default()
        }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first field that is out of range, with its value and the range.
    pub fn check(self) -> Result<CheckedConfig, ConfigError> {
        let range = |field: &'static str, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError { field, value, min, max }) }
        };
        let power = |field: &'static str, value: u32| {
            if value.is_power_of_two() {
                Ok(())
            } else {
                let min = u64::from(value).next_power_of_two() / 2;
                Err(ConfigError { field, value: value.into(), min, max: min * 2 })
            }
        };
        range("paths", self.paths.into(), 1, 256)?;
        range("path_pool", self.path_pool.into(), self.paths.into(), 1024)?;
        range("max_datagram", self.max_datagram.into(), MIN_DATAGRAM.into(), MAX_DATAGRAM.into())?;
        range("packet_window", self.packet_window.into(), 64, 16384)?;
        power("packet_window", self.packet_window)?;
        range("message_window", self.message_window.into(), 64, 32768)?;
        power("message_window", self.message_window)?;
        range("max_partial_messages", self.max_partial_messages.into(), 1, 32768)?;
        range("send_queue", self.send_queue.into(), 1, 1 << 20)?;
        range("max_peers", self.max_peers.into(), 1, 1 << 20)?;
        range("ack_every", self.ack_every.into(), 1, 255)?;
        range("reorder_packets", self.reorder_packets.into(), 1, 255)?;
        range("max_burst", self.max_burst.into(), 1, 65000)?;
        range("wire_overhead", self.wire_overhead.into(), 0, 1024)?;
        range("link_rate", self.link_rate.unwrap_or(1), 1, u64::MAX)?;
        range("initial_window", self.initial_window.into(), 1, u32::MAX.into())?;
        range("local_window", self.local_window.into(), 1, u32::MAX.into())?;
        for (field, span) in [
            ("granularity (ns)", self.granularity),
            ("rto_min (ns)", self.rto_min),
            ("initial_rtt (ns)", self.initial_rtt),
            ("keepalive (ns)", self.keepalive),
            ("peer_timeout (ns)", self.peer_timeout),
            ("idle_timeout (ns)", self.idle_timeout),
            ("rnr_min (ns)", self.rnr_min),
            ("target_delay (ns)", self.target_delay),
            ("share_period (ns)", self.share_period),
        ] {
            range(field, span.as_nanos(), 1, u64::MAX)?;
        }
        range("rto_max (ns)", self.rto_max.as_nanos(), self.rto_min.as_nanos(), u64::MAX)?;
        range("rnr_max (ns)", self.rnr_max.as_nanos(), self.rnr_min.as_nanos(), u64::MAX)?;
        Ok(CheckedConfig(self))
    }
}

/// The smallest datagram size that the protocol works with, in bytes of UDP payload. Every path must carry it.
pub const MIN_DATAGRAM: u16 = 512;

/// Largest datagram that an endpoint sends, in bytes of UDP payload.
pub const MAX_DATAGRAM: u16 = 9216;

/// A [`Config`] whose ranges have been checked.
#[derive(Clone, Debug)]
pub struct CheckedConfig(Config);

impl std::ops::Deref for CheckedConfig {
    type Target = Config;
    fn deref(&self) -> &Config {
        &self.0
    }
}

/// A configuration value out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field} is {value}, must be in {min}..={max} (windows: a power of two)")]
pub struct ConfigError {
    /// Name of the field.
    pub field: &'static str,
    /// What it was.
    pub value: u64,
    /// Smallest permitted value.
    pub min: u64,
    /// Largest permitted value.
    pub max: u64,
}
