//! Posting the plain way: lists of work requests, up to the first that is wrong.

use std::ffi::c_int;
use std::sync::Once;

use arrayvec::ArrayVec;
use verbs_shim::card::profile::MAX_INLINE;
use verbs_shim::{SendData, SendOp, SendWr, Sge};

use crate::abi::hot_code;
use crate::ah::Ah;
use crate::bindings::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge,
};
use crate::errno::{EINVAL, Errno};
use crate::qp::Qp;

const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
const _: () = assert!(
    std::mem::offset_of!(Sge, addr) == 0
        && std::mem::offset_of!(Sge, len) == 8
        && std::mem::offset_of!(Sge, lkey) == 12
);

/// Work requests that are given to the card at a time.
const POST: usize = 16;

/// Where inline data is gathered.
type Scratch = ArrayVec<u8, MAX_INLINE>;

/// Whether a send has the flags that EFA wants, and no others.
#[inline]
pub(crate) fn has_good_flags(qp: &Qp, flags: u32) -> bool {
    flags & !(IBV_SEND_SIGNALED | IBV_SEND_INLINE) == 0 && (flags & IBV_SEND_SIGNALED != 0 || qp.sig_all)
}

/// Why a work request is refused that has a fault beside its flags, after `before` others: EFA's library looks for room
/// first.
#[cold]
pub(crate) fn refusal(qp: &Qp, before: usize, fault: Errno) -> Errno {
    let room = qp.context.nic().and_then(|nic| Ok(nic.check_room(qp.qpn, before as u32)?));
    room.err().unwrap_or(fault)
}

/// What a program wants sent.
///
/// # Safety
/// The work request and its list are valid.
#[inline]
unsafe fn send_wr<'a>(qp: &Qp, wr: &'a ibv_send_wr, scratch: &'a mut Scratch) -> Result<SendWr<'a>, Errno> {
    let imm = match wr.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(u32::from_be(wr.imm_data)),
        _ => return Err(EINVAL),
    };
    if !has_good_flags(qp, wr.send_flags) {
        return Err(EINVAL);
    }
    let sges = unsafe { list(wr.sg_list, wr.num_sge)? };
    let data = if wr.send_flags & IBV_SEND_INLINE != 0 {
        for sge in sges {
            let part = unsafe { bytes(sge.addr, sge.len as usize)? };
            scratch.try_extend_from_slice(part).map_err(|_| EINVAL)?;
        }
        SendData::Inline(scratch)
    } else {
        SendData::Sges(sges)
    };
    let ud = unsafe { wr.wr.ud };
    Ok(SendWr {
        wr_id: wr.wr_id,
        op: SendOp::Send { imm },
        ah: unsafe { Ah::of(ud.ah)? }.number_for(qp),
        qpn: ud.remote_qpn as u16,
        qkey: ud.remote_qkey,
        data,
    })
}

/// The buffers of a work request.
#[inline]
pub(crate) unsafe fn list<'a>(sges: *const ibv_sge, n: c_int) -> Result<&'a [Sge], Errno> {
    match usize::try_from(n) {
        Ok(0) => Ok(&[]),
        Ok(n) if !sges.is_null() => Ok(unsafe { std::slice::from_raw_parts(sges.cast::<Sge>(), n) }),
        _ => Err(EINVAL),
    }
}

/// Bytes of the program.
#[inline]
pub(crate) unsafe fn bytes<'a>(addr: u64, len: usize) -> Result<&'a [u8], Errno> {
    let start = std::ptr::with_exposed_provenance::<u8>(addr as usize);
    match len {
        0 => Ok(&[]),
        // No queue pair takes more.
        _ if start.is_null() || len > MAX_INLINE => Err(EINVAL),
        _ => Ok(unsafe { std::slice::from_raw_parts(start, len) }),
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut bad = wr;
    let outcome = hot_code(|| {
        let qp = unsafe { Qp::of(qp)? };
        let nic = qp.context.nic()?;
        let refuse = |wr: &ibv_send_wr, fault| match has_good_flags(qp, wr.send_flags) {
            true => refusal(qp, 0, fault),
            false => fault,
        };
        // Many programs post one at a time.
        if let Some(only) = unsafe { wr.as_ref() }
            && only.next.is_null()
        {
            let mut scratch = Scratch::new();
            let wr = unsafe { send_wr(qp, only, &mut scratch) }.map_err(|fault| refuse(only, fault))?;
            return Ok(nic.post_send(qp.qpn, &[wr]).1?);
        }
        let mut next = wr;
        while !next.is_null() {
            let mut scratch = [const { Scratch::new_const() }; POST];
            let mut batch = ArrayVec::<SendWr<'_>, POST>::new();
            let mut refused = Ok(());
            let first = next;
            for scratch in &mut scratch {
                let Some(wr) = (unsafe { next.as_ref() }) else { break };
                match unsafe { send_wr(qp, wr, scratch) } {
                    Ok(wr) => batch.push(wr),
                    Err(fault) => {
                        refused = Err((wr, fault));
                        break;
                    }
                }
                next = wr.next;
            }
            let (posted, outcome) = nic.post_send(qp.qpn, &batch);
            bad = first;
            for _ in 0..posted {
                bad = unsafe { (*bad).next };
            }
            outcome?;
            refused.map_err(|(wr, fault)| refuse(wr, fault))?;
        }
        Ok(())
    });
    tell_bad(outcome, bad, bad_wr);
    outcome
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut bad = wr;
    let outcome = hot_code(|| {
        let qp = unsafe { Qp::of(qp)? };
        let nic = qp.context.nic()?;
        while let Some(wr) = unsafe { bad.as_ref() } {
            nic.post_recv(qp.qpn, wr.wr_id, unsafe { list(wr.sg_list, wr.num_sge)? })?;
            if wr.num_sge == 0 {
                warn_of_no_parts();
            }
            bad = wr.next;
        }
        Ok(())
    });
    tell_bad(outcome, bad, bad_wr);
    outcome
}

/// Programs that come from RC post such receives for writes with immediate data, and wait for ever.
#[cold]
fn warn_of_no_parts() {
    static WARN: Once = Once::new();
    WARN.call_once(|| {
        tracing::warn!(
            "a receive without buffers (num_sge 0) is never used by EFA: post one with a buffer of length 0"
        );
    });
}

/// Tells which work request was the first that was not posted.
#[inline]
fn tell_bad<T>(outcome: c_int, bad: *mut T, bad_wr: *mut *mut T) {
    if outcome != 0
        && let Some(bad_wr) = unsafe { bad_wr.as_mut() }
    {
        *bad_wr = bad;
    }
}
