//! Constants; enumerations of C are integers here, because callers pass values that are not in them.

pub(crate) const IBV_NODE_UNSPECIFIED: i32 = 7;
pub(crate) const IBV_TRANSPORT_UNSPECIFIED: i32 = 4;
pub(crate) const IBV_FORK_UNNEEDED: i32 = 2;

pub(crate) const IBV_MTU_256: i32 = 1;
pub(crate) const IBV_MTU_4096: i32 = 5;
pub(crate) const IBV_PORT_ACTIVE: i32 = 4;
pub(crate) const PHYS_STATE_LINK_UP: u8 = 5;
pub(crate) const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;

pub(crate) const IBV_EVENT_CQ_ERR: i32 = 0;

pub(crate) const IBV_WC_SEND: i32 = 0;
pub(crate) const IBV_WC_RDMA_WRITE: i32 = 1;
pub(crate) const IBV_WC_RECV: i32 = 128;
pub(crate) const IBV_WC_RECV_RDMA_WITH_IMM: i32 = 129;
pub(crate) const IBV_WC_GRH: u32 = 1;
pub(crate) const IBV_WC_WITH_IMM: u32 = 2;

pub(crate) const IBV_WC_EX_WITH_BYTE_LEN: u64 = 1;
pub(crate) const IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
pub(crate) const IBV_WC_EX_WITH_QP_NUM: u64 = 1 << 2;
pub(crate) const IBV_WC_EX_WITH_SRC_QP: u64 = 1 << 3;
pub(crate) const IBV_WC_EX_WITH_SLID: u64 = 1 << 4;
pub(crate) const IBV_WC_EX_WITH_SL: u64 = 1 << 5;
pub(crate) const IBV_WC_EX_WITH_DLID_PATH_BITS: u64 = 1 << 6;
pub(crate) const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;

pub(crate) const IBV_ACCESS_LOCAL_WRITE: u32 = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub(crate) const IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
pub(crate) const IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// All that there are, down to those for persistent memory.
pub(crate) const IBV_ACCESS_KNOWN: u32 = (1 << 10) - 1;
/// Wishes that a device may ignore.
pub(crate) const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
pub(crate) const IBV_REREG_MR_CHANGE_TRANSLATION: i32 = 1;
pub(crate) const IBV_REREG_MR_CHANGE_ACCESS: i32 = 1 << 2;
pub(crate) const IBV_REREG_MR_FLAGS_SUPPORTED: i32 = 7;
pub(crate) const IBV_REREG_MR_ERR_INPUT: i32 = -1;
pub(crate) const IBV_REREG_MR_ERR_CMD: i32 = -4;

pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;
pub(crate) const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub(crate) const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub(crate) const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;

pub(crate) const IBV_QPT_UD: i32 = 4;
pub(crate) const IBV_QPT_DRIVER: i32 = 0xff;

pub(crate) const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub(crate) const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub(crate) const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub(crate) const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub(crate) const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;

pub(crate) const IBV_QP_STATE: i32 = 1;
pub(crate) const IBV_QP_CUR_STATE: i32 = 1 << 1;
pub(crate) const IBV_QP_EN_SQD_ASYNC_NOTIFY: i32 = 1 << 2;
pub(crate) const IBV_QP_PKEY_INDEX: i32 = 1 << 4;
pub(crate) const IBV_QP_PORT: i32 = 1 << 5;
pub(crate) const IBV_QP_QKEY: i32 = 1 << 6;
pub(crate) const IBV_QP_RNR_RETRY: i32 = 1 << 11;
pub(crate) const IBV_QP_SQ_PSN: i32 = 1 << 16;
pub(crate) const IBV_QP_CAP: i32 = 1 << 19;

pub(crate) const IBV_WR_SEND: i32 = 2;
pub(crate) const IBV_WR_SEND_WITH_IMM: i32 = 3;

pub(crate) const IBV_SEND_SIGNALED: u32 = 1 << 1;
pub(crate) const IBV_SEND_INLINE: u32 = 1 << 3;

pub(crate) const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;
pub(crate) const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1;
pub(crate) const EFADV_QP_FLAGS_INLINE_WRITE: u16 = 1 << 1;
pub(crate) const EFADV_SQ_DEPTH_ATTR_INLINE_WRITE: u32 = 1;
pub(crate) const EFADV_WQ_CAPS_64_BIT_REQ_ID: u16 = 1;
pub(crate) const EFADV_WR_EX_WITH_PROCESSING_HINTS: u64 = 1;
pub(crate) const EFADV_WC_EX_WITH_SGID: u64 = 1;
pub(crate) const EFADV_WC_EX_WITH_IS_UNSOLICITED: u64 = 1 << 1;
