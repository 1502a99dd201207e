//! EFA's extensions.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::null_mut;

use verbs_shim::card::profile::{SHORT_INLINE, caps};
use verbs_shim::{Profile, QpType};

use crate::abi::{code, export, fetch, fill, negative, out, pointer};
use crate::ah::Ah;
use crate::bindings::{
    EFADV_QP_DRIVER_TYPE_SRD, EFADV_QP_FLAGS_INLINE_WRITE, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV,
    EFADV_SQ_DEPTH_ATTR_INLINE_WRITE, EFADV_WC_EX_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_SGID,
    EFADV_WQ_CAPS_64_BIT_REQ_ID, EFADV_WR_EX_WITH_PROCESSING_HINTS, IBV_QPT_DRIVER, efadv_ah_attr, efadv_cq,
    efadv_cq_attr, efadv_cq_init_attr, efadv_device_attr, efadv_mr_attr, efadv_qp, efadv_qp_init_attr,
    efadv_rq_depth_attr, efadv_sq_depth_attr, efadv_wq_attr, ibv_ah, ibv_context, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno};
use crate::qp::{self, EfaInit, Qp};
use crate::rings::Place;
use crate::{config, cq_ex, pd_mr};

/// What the caller must know of a structure at least: the field and what precedes it.
macro_rules! up_to {
    ($type:ty, $field:ident) => {
        offset_of!($type, $field) + 1
    };
}

export!(
    "EFA_1.1",
    fn efadv_query_device(context: *mut ibv_context, attr: *mut efadv_device_attr, inlen: u32) -> c_int {
        code(|| {
            let p = unsafe { Context::of(context)? }.nic()?.profile();
            if attr.is_null() || (inlen as usize) < up_to!(efadv_device_attr, inline_buf_size_ex) {
                return Err(EINVAL);
            }
            let known = efadv_device_attr {
                comp_mask: 0,
                max_sq_wr: p.max_sq_wr,
                max_rq_wr: p.max_rq_wr,
                max_sq_sge: p.max_sq_sge,
                max_rq_sge: p.max_rq_sge,
                inline_buf_size: p.max_inline.min(SHORT_INLINE) as u16,
                inline_buf_size_ex: p.max_inline as u16,
                device_caps: p.caps,
                max_rdma_size: if p.has(caps::RDMA_READ) || p.has(caps::RDMA_WRITE) { p.max_rdma } else { 0 },
            };
            unsafe { fill(attr, inlen as usize, &known) };
            Ok(())
        })
    }
);

export!(
    "EFA_1.1",
    fn efadv_query_ah(ah: *mut ibv_ah, attr: *mut efadv_ah_attr, inlen: u32) -> c_int {
        code(|| {
            let ah = unsafe { Ah::of(ah)? };
            ah.context.nic()?;
            if attr.is_null() || (inlen as usize) < up_to!(efadv_ah_attr, ahn) {
                return Err(EINVAL);
            }
            let known = efadv_ah_attr { comp_mask: 0, ahn: ah.number, reserved: [0; 6] };
            unsafe { fill(attr, inlen as usize, &known) };
            Ok(())
        })
    }
);

export!(
    "EFA_1.3",
    fn efadv_query_mr(mr: *mut ibv_mr, attr: *mut efadv_mr_attr, inlen: u32) -> c_int {
        code(|| {
            unsafe { pd_mr::context_of_mr(mr)? }.nic()?;
            if attr.is_null() || (inlen as usize) < up_to!(efadv_mr_attr, rdma_recv_ic_id) {
                return Err(EINVAL);
            }
            // There are no interconnects to tell apart: no id is valid.
            let known = efadv_mr_attr {
                comp_mask: 0,
                ic_id_validity: 0,
                recv_ic_id: 0,
                rdma_read_ic_id: 0,
                rdma_recv_ic_id: 0,
            };
            unsafe { fill(attr, inlen as usize, &known) };
            Ok(())
        })
    }
);

/// Makes a queue pair of the only type that EFA's functions make; the general ones make the other.
unsafe fn create_qp(attr: &mut ibv_qp_init_attr_ex, efa: &efadv_qp_init_attr) -> Result<*mut ibv_qp, Errno> {
    if attr.qp_type != IBV_QPT_DRIVER {
        return Err(EINVAL);
    }
    let known = EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV | EFADV_QP_FLAGS_INLINE_WRITE;
    if efa.driver_qp_type != EFADV_QP_DRIVER_TYPE_SRD
        || efa.flags & !known != 0
        || efa.wr_flags & !EFADV_WR_EX_WITH_PROCESSING_HINTS != 0
    {
        return Err(EOPNOTSUPP);
    }
    let init = EfaInit {
        ty: QpType::Srd,
        unsolicited_write_recv: efa.flags & EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV != 0,
        inline_write: efa.flags & EFADV_QP_FLAGS_INLINE_WRITE != 0,
        hints: efa.wr_flags & EFADV_WR_EX_WITH_PROCESSING_HINTS != 0,
    };
    unsafe { qp::create(attr, &init) }
}

export!(
    "EFA_1.0",
    fn efadv_create_driver_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr, driver_qp_type: u32) -> *mut ibv_qp {
        pointer(|| {
            let attr = unsafe { out(attr)? };
            let mut long = qp::long_form(pd, attr);
            // All fields of the structure are numbers.
            let zero: efadv_qp_init_attr = unsafe { std::mem::zeroed() };
            let qp = unsafe { create_qp(&mut long, &efadv_qp_init_attr { driver_qp_type, ..zero })? };
            attr.cap = long.cap;
            Ok(qp)
        })
    }
);

export!(
    "EFA_1.1",
    fn efadv_create_qp_ex(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
        efa_attr: *mut efadv_qp_init_attr,
        inlen: u32,
    ) -> *mut ibv_qp {
        pointer(|| {
            unsafe { Context::of(context)? }.nic()?;
            let attr = unsafe { out(attr)? };
            let efa = unsafe { fetch(efa_attr, inlen as usize, up_to!(efadv_qp_init_attr, driver_qp_type))? };
            if efa.comp_mask != 0 || efa.reserved != 0 {
                return Err(EINVAL);
            }
            unsafe { create_qp(attr, &efa) }
        })
    }
);

export!(
    "EFA_1.2",
    fn efadv_create_cq(
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
        efa_attr: *mut efadv_cq_init_attr,
        inlen: u32,
    ) -> *mut ibv_cq_ex {
        pointer(|| {
            let p = unsafe { Context::of(context)? }.nic()?.profile();
            let efa = unsafe { fetch(efa_attr, inlen as usize, up_to!(efadv_cq_init_attr, wc_flags))? };
            if efa.comp_mask != 0 || efa.reserved != [0; 4] {
                return Err(EINVAL);
            }
            let mut known = 0;
            if p.has(caps::CQ_WITH_SGID) {
                known |= EFADV_WC_EX_WITH_SGID;
            }
            if p.has(caps::UNSOLICITED_WRITE_RECV) {
                known |= EFADV_WC_EX_WITH_IS_UNSOLICITED;
            }
            // Flags are for queues in memory of the program, which the card keeps itself.
            if efa.wc_flags & !known != 0 || efa.flags != 0 {
                return Err(EOPNOTSUPP);
            }
            unsafe { cq_ex::create(context, attr, efa.wc_flags) }
        })
    }
);

export!(
    "EFA_1.2",
    fn efadv_cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut efadv_cq {
        pointer(|| Ok(unsafe { Cq::of(cq.cast())? }.efadv.get()))
    }
);

export!(
    "EFA_1.6",
    fn efadv_qp_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut efadv_qp {
        pointer(|| Ok(unsafe { Qp::of(qp.cast())? }.efadv.get()))
    }
);

export!(
    "EFA_1.5",
    fn efadv_get_max_sq_depth(context: *mut ibv_context, attr: *mut efadv_sq_depth_attr, inlen: u32) -> c_int {
        negative(|| {
            let p = unsafe { Context::of(context)? }.nic()?.profile();
            let want = unsafe { fetch(attr, inlen as usize, up_to!(efadv_sq_depth_attr, max_inline_data))? };
            let inline_write = want.flags & EFADV_SQ_DEPTH_ATTR_INLINE_WRITE != 0;
            if want.comp_mask != 0
                || want.max_send_sge > p.max_sq_sge.into()
                || want.max_rdma_sge > 1
                || want.max_inline_data > p.max_inline
            {
                return Err(EINVAL);
            }
            Ok(p.max_sq_wr_with(want.max_inline_data, inline_write) as isize)
        }) as c_int
    }
);

export!(
    "EFA_1.5",
    fn efadv_get_max_rq_depth(context: *mut ibv_context, attr: *mut efadv_rq_depth_attr, inlen: u32) -> c_int {
        negative(|| {
            let p = unsafe { Context::of(context)? }.nic()?.profile();
            let want = unsafe { fetch(attr, inlen as usize, up_to!(efadv_rq_depth_attr, max_recv_sge))? };
            if want.comp_mask != 0 || want.max_recv_sge > p.max_rq_sge.into() {
                return Err(EINVAL);
            }
            Ok((p.max_rq_wr / want.max_recv_sge.max(1)) as isize)
        }) as c_int
    }
);

export!(
    "EFA_1.4",
    fn efadv_query_cq(cq: *mut ibv_cq, attr: *mut efadv_cq_attr, inlen: u32) -> c_int {
        code(|| {
            let cq = unsafe { Cq::of(cq)? };
            let card = cq.context.card()?;
            if attr.is_null() || (inlen as usize) < up_to!(efadv_cq_attr, num_entries) {
                return Err(EINVAL);
            }
            offers_rings(card.nic.profile())?;
            // Lengths of writes need the room.
            let is_wide = cq.tells_sgid() || card.nic.profile().has(caps::RDMA_WRITE);
            let place = card.rings.of_cq(cq, card.nic.cq_depth(cq.id), is_wide)?;
            let known = efadv_cq_attr {
                comp_mask: 0,
                buffer: place.buffer,
                entry_size: place.entry_size,
                num_entries: place.num_entries,
                doorbell: if cq.has_channel() { place.doorbell } else { null_mut() },
            };
            unsafe { fill(attr, inlen as usize, &known) };
            Ok(())
        })
    }
);

export!(
    "EFA_1.4",
    fn efadv_query_qp_wqs(
        qp: *mut ibv_qp,
        sq_attr: *mut efadv_wq_attr,
        rq_attr: *mut efadv_wq_attr,
        inlen: u32,
    ) -> c_int {
        code(|| {
            let qp = unsafe { Qp::of(qp)? };
            let card = qp.context.card()?;
            if sq_attr.is_null() || rq_attr.is_null() || (inlen as usize) < up_to!(efadv_wq_attr, max_batch) {
                return Err(EINVAL);
            }
            offers_rings(card.nic.profile())?;
            let known = |place: Place, caps| efadv_wq_attr {
                comp_mask: 0,
                buffer: place.buffer,
                entry_size: place.entry_size,
                num_entries: place.num_entries,
                doorbell: place.doorbell,
                // There is no memory of a device that could be full.
                max_batch: place.num_entries,
                caps,
                reserved: [0; 2],
            };
            let (sends, receives) = card.rings.of_qp(qp)?;
            let long_ids = card.nic.profile().part_id >= LONG_IDS;
            unsafe {
                fill(sq_attr, inlen as usize, &known(sends, if long_ids { EFADV_WQ_CAPS_64_BIT_REQ_ID } else { 0 }));
                fill(rq_attr, inlen as usize, &known(receives, 0));
            }
            Ok(())
        })
    }
);

/// Generations from this one on have ids of 64 bits in their send queues.
const LONG_IDS: u32 = 0xefa4;
/// Generations up to this one have several queues behind a completion queue, so that programs cannot use them themselves.
const SUB_CQS: u32 = 0xefa0;

/// Whether programs may use queues in memory.
fn offers_rings(profile: &Profile) -> Result<(), Errno> {
    if config::rings() && profile.part_id > SUB_CQS { Ok(()) } else { Err(EOPNOTSUPP) }
}
