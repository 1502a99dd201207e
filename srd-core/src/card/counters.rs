//! What a card counts, under the names that EFA's driver gives to its hardware counters.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// All counters by name, in a fixed order.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// Adds those of another processing unit.
            pub fn add(&mut self, other: &$name) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Counters of the port that the card itself keeps; those of packets are the transport's.
    PortCounters {
        /// Bytes of sends that completed.
        send_bytes,
        /// Sends that completed.
        send_wrs,
        /// Bytes of messages received.
        recv_bytes,
        /// Messages received.
        recv_wrs,
        /// RDMA reads that completed.
        rdma_read_wrs,
        /// Bytes that they brought.
        rdma_read_bytes,
        /// RDMA reads that failed.
        rdma_read_wr_err,
        /// Bytes that peers have read.
        rdma_read_resp_bytes,
        /// RDMA writes that completed.
        rdma_write_wrs,
        /// Bytes that they carried.
        rdma_write_bytes,
        /// RDMA writes that failed.
        rdma_write_wr_err,
        /// Bytes that peers have written.
        rdma_write_recv_bytes,
        /// Messages that were dropped or turned away: no buffer, no queue pair, no permission.
        rx_drops,
        /// Connections that ended because the peer stopped answering.
        unresponsive_remote_events,
    }
}

counters! {
    /// Counters of commands.
    DeviceCounters {
        /// Commands given.
        submitted_cmds,
        /// Commands that came back.
        completed_cmds,
        /// Commands that failed.
        cmds_err,
        /// Protection domains that could not be made.
        alloc_pd_err,
        /// Queue pairs that could not be made.
        create_qp_err,
        /// Completion queues that could not be made.
        create_cq_err,
        /// Memory regions that could not be registered.
        reg_mr_err,
        /// Address handles that could not be made.
        create_ah_err,
    }
}

impl DeviceCounters {
    /// A command that was counted as done came to nothing: an address handle for which another processing unit has no room,
    /// since nothing else is refused by one unit only.
    pub fn fail_last(&mut self) {
        self.cmds_err += 1;
        self.create_ah_err += 1;
    }
}
