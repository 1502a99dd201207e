//! Polling completion queues the extended way.

use std::ffi::c_int;

use crate::abi::{arg, hot_code, pointer, quiet};
use crate::bindings::{
    EFADV_WC_EX_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_SGID, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_DLID_PATH_BITS, IBV_WC_EX_WITH_IMM,
    IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, IBV_WC_STANDARD_FLAGS,
    IBV_WC_WITH_IMM, efadv_cq, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_gid, ibv_poll_cq_attr,
};
use crate::context::Context;
use crate::cq::{self, Cq, CqInit};
use crate::errno::{EINVAL, ENOENT, EOPNOTSUPP, Errno};
use crate::pd_mr::Pd;
use verbs_shim::Completion;
use verbs_shim::card::UNKNOWN_AH;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| unsafe { create(context, attr, 0) })
}

/// Makes a completion queue with EFA's flags beside the general ones.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    efa_wc_flags: u64,
) -> Result<*mut ibv_cq_ex, Errno> {
    let context = unsafe { Context::of(context)? };
    let attr = unsafe { arg(attr)? };
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || attr.wc_flags & !IBV_WC_STANDARD_FLAGS != 0
        // That one thread uses it is a promise of which nothing is made.
        || has(IBV_CQ_INIT_ATTR_MASK_FLAGS) && attr.flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
    {
        return Err(EOPNOTSUPP);
    }
    let domain = if has(IBV_CQ_INIT_ATTR_MASK_PD) { Some(unsafe { Pd::of(attr.parent_domain)? }) } else { None };
    if domain.is_some_and(|domain| !domain.is_parent()) {
        return Err(EINVAL);
    }
    let init = CqInit {
        cqe: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector,
        wc_flags: attr.wc_flags,
        efa_wc_flags,
        domain,
    };
    unsafe { cq::create(context, &init) }
}

/// Sets the functions; those that read what was not asked for stay null, as in EFA's library.
pub(crate) fn fill(public: &mut ibv_cq_ex, wc_flags: u64) {
    let has = |flag| wc_flags & flag != 0;
    public.start_poll = Some(start_poll);
    public.next_poll = Some(next_poll);
    public.end_poll = Some(end_poll);
    public.read_opcode = Some(read_opcode);
    public.read_vendor_err = Some(read_vendor_err);
    public.read_wc_flags = Some(read_wc_flags);
    public.read_byte_len = has(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    public.read_imm_data = has(IBV_WC_EX_WITH_IMM).then_some(read_imm_data as _);
    public.read_qp_num = has(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
    public.read_src_qp = has(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp as _);
    public.read_slid = has(IBV_WC_EX_WITH_SLID).then_some(read_slid as _);
    public.read_sl = has(IBV_WC_EX_WITH_SL).then_some(read_zero as _);
    public.read_dlid_path_bits = has(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_zero as _);
}

/// EFA's part of the same.
pub(crate) fn efadv(flags: u64) -> efadv_cq {
    let has = |flag| flags & flag != 0;
    efadv_cq {
        comp_mask: 0,
        wc_read_sgid: has(EFADV_WC_EX_WITH_SGID).then_some(read_sgid as _),
        wc_is_unsolicited: has(EFADV_WC_EX_WITH_IS_UNSOLICITED).then_some(is_unsolicited as _),
    }
}

/// Makes the next entry the current one.
///
/// # Safety
/// The caller is in a poll session.
#[inline]
unsafe fn advance(cq: &Cq) -> Result<(), Errno> {
    if !unsafe { cq.next()? } {
        return Err(ENOENT);
    }
    let entry = unsafe { cq.current() };
    let public = cq.public();
    unsafe {
        (*public).wr_id = entry.wr_id;
        (*public).status = cq::status(entry.status);
    }
    Ok(())
}

/// 0, or an error number; that there is nothing is no error that `errno` should tell of.
#[inline]
fn unless_empty(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    let mut empty = false;
    let code = hot_code(|| match body() {
        Err(ENOENT) => {
            empty = true;
            Ok(())
        }
        other => other,
    });
    if empty { ENOENT.0 } else { code }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    unless_empty(|| {
        let cq = unsafe { Cq::of(cq.cast())? };
        if unsafe { attr.as_ref() }.is_some_and(|a| a.comp_mask != 0) {
            return Err(EINVAL);
        }
        let session = cq.begin()?;
        let found = unsafe { advance(cq) };
        cq.note_begun(found.is_ok());
        found?;
        // It goes on until the program ends it.
        std::mem::forget(session);
        Ok(())
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    unless_empty(|| unsafe { advance(Cq::of(cq.cast())?) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    quiet((), || {
        if let Ok(cq) = unsafe { Cq::of(cq.cast()) } {
            cq.end();
        }
    });
}

/// The current entry, of a program that is in a poll session as verbs.h demands of those that read.
#[inline]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Completion {
    unsafe { (*cq.cast::<Cq>()).current() }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_int {
    cq::opcode(unsafe { current(cq) }.opcode)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { current(cq) }.status.code().into()
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    if unsafe { current(cq) }.imm.is_some() { IBV_WC_WITH_IMM } else { 0 }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { current(cq) }.byte_len
}

/// In network byte order.
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { current(cq) }.imm.unwrap_or(0).to_be()
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { current(cq) }.qpn.into()
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { current(cq) }.src_qpn.into()
}

unsafe extern "C" fn read_slid(cq: *mut ibv_cq_ex) -> u32 {
    unsafe { current(cq) }.ah.into()
}

unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// The queue that an `efadv_cq` is part of.
#[inline]
unsafe fn around<'a>(efadv: *mut efadv_cq) -> &'a Cq {
    unsafe { &*efadv.byte_sub(std::mem::offset_of!(Cq, efadv)).cast::<Cq>() }
}

/// The sender's GID, if its address handle is not known.
unsafe extern "C" fn read_sgid(efadv: *mut efadv_cq, sgid: *mut ibv_gid) -> c_int {
    let entry = unsafe { around(efadv).current() };
    if entry.ah != UNKNOWN_AH || sgid.is_null() {
        return -ENOENT.0;
    }
    unsafe { (*sgid).raw = entry.sgid.0 };
    0
}

unsafe extern "C" fn is_unsolicited(efadv: *mut efadv_cq) -> bool {
    unsafe { around(efadv).current() }.unsolicited
}
