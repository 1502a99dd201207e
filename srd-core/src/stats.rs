//! Counters and snapshots: free-running, one writer, read by copying.

use crate::driver::SourcePort;
use crate::time::Span;

/// Counters of an endpoint since its start.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams sent.
    pub tx_packets: u64,
    /// Those of them that carried payload of messages.
    pub tx_data_packets: u64,
    /// Bytes of UDP payload sent.
    pub tx_bytes: u64,
    /// Datagrams received, good or bad.
    pub rx_packets: u64,
    /// Bytes of UDP payload received.
    pub rx_bytes: u64,
    /// Messages whose delivery was confirmed.
    pub messages_sent: u64,
    /// Messages that failed.
    pub messages_failed: u64,
    /// Payload bytes of confirmed messages.
    pub message_bytes_sent: u64,
    /// Messages delivered to the upper storey.
    pub messages_received: u64,
    /// Payload bytes delivered.
    pub message_bytes_received: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Packets whose payload was sent again (lost ones and tail probes).
    pub retransmits: u64,
    /// Bytes of those packets, without padding and checksum.
    pub retransmit_bytes: u64,
    /// Packets declared lost that were acknowledged later.
    pub spurious_retransmits: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Tail-loss probes.
    pub tail_probes: u64,
    /// Packets received again, or carrying only what was there already.
    pub duplicates: u64,
    /// Acknowledgement frames sent.
    pub acks_sent: u64,
    /// Keepalives sent.
    pub keepalives: u64,
    /// 'Receiver not ready' answers received.
    pub rnr: u64,
    /// Paths declared dead and replaced.
    pub paths_replaced: u64,
    /// Datagrams that were not a packet of this protocol, or malformed.
    pub rx_malformed: u64,
    /// Datagrams with a wrong checksum.
    pub rx_bad_checksum: u64,
    /// Packets for connections that do not exist (old incarnations, strangers, forgeries).
    pub rx_unknown: u64,
    /// Well-formed packets that broke a rule of the protocol (window overrun, acknowledging what was not sent).
    pub rx_violations: u64,
    /// Handshakes refused because the table of peers was full, or replies suppressed by the rate limit.
    pub rx_refused: u64,
    /// Connections established.
    pub connections_opened: u64,
    /// Connections ended by peer timeout, restart, or close with messages outstanding.
    pub connections_failed: u64,
    /// Times the datagram size was reduced because large datagrams vanished.
    pub mtu_reductions: u64,
    /// Times the endpoint noticed that it had been stalled.
    pub stalls: u64,
}

impl Stats {
    /// Adds those of another endpoint.
    pub fn add(&mut self, other: &Stats) {
        macro_rules! add {
            ($($field:ident)*) => {{
                // All of them, or it does not compile.
                let Stats { $($field),* } = other;
                $(self.$field += $field;)*
            }};
        }
        add! {
            tx_packets
            tx_data_packets
            tx_bytes
            rx_packets
            rx_bytes
            messages_sent
            messages_failed
            message_bytes_sent
            messages_received
            message_bytes_received
            lost_packets
            retransmits
            retransmit_bytes
            spurious_retransmits
            timeouts
            tail_probes
            duplicates
            acks_sent
            keepalives
            rnr
            paths_replaced
            rx_malformed
            rx_bad_checksum
            rx_unknown
            rx_violations
            rx_refused
            connections_opened
            connections_failed
            mtu_reductions
            stalls
        }
    }
}

/// What a connection looks like now.
#[derive(Clone, Debug, Default)]
pub struct PeerStats {
    /// Whether the handshake is done.
    pub established: bool,
    /// Smoothed round-trip time over all paths.
    pub srtt: Span,
    /// Smallest recent round-trip time.
    pub min_rtt: Span,
    /// Pacing rate in bytes per second.
    pub rate: u64,
    /// In-flight limit in bytes.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Largest datagram at present, in bytes.
    pub datagram: u16,
    /// Messages queued or in progress.
    pub messages: u32,
    /// One entry per path.
    pub paths: Vec<PathStats>,
}

/// State of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathState {
    /// New: nothing has been acknowledged on it yet.
    #[default]
    Unproven,
    /// Carries traffic.
    Good,
    /// Lost its last packets; probed, carries no data.
    Suspect,
}

/// Counters and estimates of one path.
#[derive(Clone, Copy, Debug)]
pub struct PathStats {
    /// The source port it uses (index in the driver's pool).
    pub port: SourcePort,
    /// State.
    pub state: PathState,
    /// Smoothed round-trip time.
    pub srtt: Span,
    /// Smallest recent round-trip time.
    pub min_rtt: Span,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Packets that arrived with a congestion mark.
    pub ce: u64,
    /// How often the path was replaced by a new source port.
    pub replaced: u32,
}
