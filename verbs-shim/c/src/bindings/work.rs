//! Work requests and completions.

use std::ffi::{c_int, c_void};

use super::{c_structs, ibv_ah};

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union ibv_send_wr_wr {
    pub(crate) rdma: Rdma,
    pub(crate) ud: Ud,
    /// The longest member, of operations that do not exist here.
    pub(crate) atomic: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

c_structs! {
    struct ibv_sge: 16 { addr: u64, length: u32, lkey: u32 }

    struct ibv_data_buf: 16 { addr: *mut c_void, length: usize }

    struct ibv_send_wr: 128 {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_int,
        send_flags: u32,
        imm_data: u32,
        wr: ibv_send_wr_wr,
        qp_type: u32,
        bind_mw: [u64; 6],
    }

    struct ibv_recv_wr: 32 { wr_id: u64, next: *mut ibv_recv_wr, sg_list: *mut ibv_sge, num_sge: c_int }

    struct ibv_wc: 48 {
        wr_id: u64,
        status: c_int,
        opcode: c_int,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: u32,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    struct ibv_poll_cq_attr: 4 { comp_mask: u32 }
}
