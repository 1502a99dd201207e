//! EFA's extensions. Structures that grew after rdma-core 44 have their newest layout here; callers say how much they know.

use std::ffi::c_int;

use super::{c_structs, ibv_gid};

c_structs! {
    struct efadv_device_attr: 32 {
        comp_mask: u64,
        max_sq_wr: u32,
        max_rq_wr: u32,
        max_sq_sge: u16,
        max_rq_sge: u16,
        inline_buf_size: u16,
        inline_buf_size_ex: u16,
        device_caps: u32,
        max_rdma_size: u32,
    }

    struct efadv_ah_attr: 16 { comp_mask: u64, ahn: u16, reserved: [u8; 6] }

    struct efadv_mr_attr: 16 {
        comp_mask: u64,
        ic_id_validity: u16,
        recv_ic_id: u16,
        rdma_read_ic_id: u16,
        rdma_recv_ic_id: u16,
    }

    struct efadv_qp_init_attr: 24 {
        comp_mask: u64,
        driver_qp_type: u32,
        flags: u16,
        sl: u8,
        reserved: u8,
        wr_flags: u64,
    }

    struct efadv_cq_init_attr: 56 {
        comp_mask: u64,
        wc_flags: u64,
        flags: u64,
        buffer: *mut u8,
        length: u64,
        offset: u64,
        fd: i32,
        reserved: [u8; 4],
    }

    struct efadv_cq: 24 {
        comp_mask: u64,
        wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int>,
        wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
    }

    struct efadv_qp: 16 {
        comp_mask: u64,
        wr_set_processing_hints: Option<unsafe extern "C" fn(*mut efadv_qp, u32)>,
    }

    struct efadv_sq_depth_attr: 24 {
        comp_mask: u64,
        flags: u32,
        max_send_sge: u32,
        max_rdma_sge: u32,
        max_inline_data: u32,
    }

    struct efadv_rq_depth_attr: 16 { comp_mask: u64, max_recv_sge: u32, reserved: [u8; 4] }

    struct efadv_cq_attr: 32 {
        comp_mask: u64,
        buffer: *mut u8,
        entry_size: u32,
        num_entries: u32,
        doorbell: *mut u32,
    }

    struct efadv_wq_attr: 40 {
        comp_mask: u64,
        buffer: *mut u8,
        entry_size: u32,
        num_entries: u32,
        doorbell: *mut u32,
        max_batch: u32,
        caps: u16,
        reserved: [u8; 2],
    }
}
