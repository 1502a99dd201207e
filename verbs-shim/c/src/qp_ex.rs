//! Posting the extended way: work requests are staged between start and complete, and posted all or none.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};

use arrayvec::ArrayVec;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use verbs_shim::card::profile::{MAX_INLINE, MAX_SGE};
use verbs_shim::{SendData, SendOp, SendWr, Sge};

use crate::abi::{code, quiet};
use crate::ah::Ah;
use crate::bindings::{
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_SEND_INLINE, IBV_SEND_SIGNALED, efadv_qp, ibv_ah, ibv_data_buf, ibv_qp_ex,
    ibv_sge,
};
use crate::errno::{EINVAL, ENOMEM, Errno};
use crate::post::{bytes, list};
use crate::qp::Qp;

/// Work requests that are being built, of one thread at a time.
pub(crate) struct Stage {
    /// Held from start to complete or abort.
    lock: RawMutex,
    open: Cell<bool>,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    /// The first thing that was wrong.
    error: Result<(), Errno>,
    /// The first `len` are staged. It never shrinks, so that staging allocates nothing after a while.
    staged: Vec<Staged>,
    len: usize,
    /// What is passed to the card; its references are into `staged`, and it is empty between calls.
    wrs: Vec<SendWr<'static>>,
}

/// A work request that is being built.
struct Staged {
    wr_id: u64,
    op: SendOp,
    /// `None` until the address is set, without which it cannot be posted.
    ah: Option<u16>,
    qpn: u16,
    qkey: u32,
    data: Data,
    sges: ArrayVec<Sge, MAX_SGE>,
    inline: ArrayVec<u8, MAX_INLINE>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Sges,
    Inline,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let inner = Inner { error: Ok(()), staged: Vec::new(), len: 0, wrs: Vec::new() };
        Stage { lock: RawMutex::INIT, open: Cell::new(false), inner: UnsafeCell::new(inner) }
    }

    fn open(&self) {
        self.lock.lock();
        self.open.set(true);
        let inner = unsafe { &mut *self.inner.get() };
        (inner.error, inner.len) = (Ok(()), 0);
    }

    fn close(&self) {
        if self.open.replace(false) {
            // It was locked by `open`.
            unsafe { self.lock.unlock() };
        }
    }
}

impl Staged {
    fn data(&self) -> SendData<'_> {
        match self.data {
            Data::Sges => SendData::Sges(&self.sges),
            Data::Inline => SendData::Inline(&self.inline),
        }
    }

    fn wr(&self) -> Result<SendWr<'_>, Errno> {
        let Staged { wr_id, op, qpn, qkey, .. } = *self;
        Ok(SendWr { wr_id, op, ah: self.ah.ok_or(EINVAL)?, qpn, qkey, data: self.data() })
    }
}

impl Inner {
    #[inline]
    fn fail(&mut self, errno: Errno) {
        if self.error.is_ok() {
            self.error = Err(errno);
        }
    }

    /// Begins a work request.
    #[inline]
    fn begin(&mut self, qp: &Qp, op: SendOp) {
        let public = qp.public();
        let (wr_id, flags) = unsafe { ((*public).wr_id, (*public).wr_flags) };
        // That data is inline is told by how it is set; some programs say it here, too.
        if flags & !(IBV_SEND_SIGNALED | IBV_SEND_INLINE) != 0 || (flags & IBV_SEND_SIGNALED == 0 && !qp.sig_all) {
            self.fail(EINVAL);
        } else if self.len >= qp.cap.send_wr as usize {
            self.fail(ENOMEM);
        }
        if self.error.is_err() {
            return;
        }
        if self.len == self.staged.len() {
            self.staged.push(Staged {
                wr_id,
                op,
                ah: None,
                qpn: 0,
                qkey: 0,
                data: Data::Sges,
                sges: ArrayVec::new(),
                inline: ArrayVec::new(),
            });
        } else {
            let next = &mut self.staged[self.len];
            (next.wr_id, next.op, next.ah, next.data) = (wr_id, op, None, Data::Sges);
            next.sges.clear();
            next.inline.clear();
        }
        self.len += 1;
    }

    /// Sets something of the work request that was begun last.
    #[inline]
    fn set(&mut self, set: impl FnOnce(&mut Staged) -> Result<(), Errno>) {
        if self.error.is_ok() {
            let outcome = match self.len.checked_sub(1) {
                Some(last) => set(&mut self.staged[last]),
                None => Err(EINVAL),
            };
            if let Err(errno) = outcome {
                self.fail(errno);
            }
        }
    }

    /// Posts what is staged.
    fn post(&mut self, qp: &Qp) -> Result<(), Errno> {
        self.error?;
        let nic = qp.context.nic()?;
        match &self.staged[..self.len] {
            [] => Ok(()),
            [one] => Ok(nic.post_send_all(qp.qpn, &[one.wr()?])?),
            many => {
                let mut outcome = Ok(());
                for staged in many {
                    match staged.wr() {
                        // The references end before the work requests can change: the list is cleared below.
                        Ok(wr) => self.wrs.push(unsafe { std::mem::transmute::<SendWr<'_>, SendWr<'static>>(wr) }),
                        Err(errno) => outcome = Err(errno),
                    }
                }
                if outcome.is_ok() {
                    outcome = nic.post_send_all(qp.qpn, &self.wrs).map_err(Errno::from);
                }
                self.wrs.clear();
                outcome
            }
        }
    }
}

/// Sets the functions for the operations that were asked for; the others stay null, as in EFA's library.
pub(crate) fn fill(public: &mut ibv_qp_ex, ops: u64) {
    let has = |flag| ops & flag != 0;
    public.wr_start = Some(wr_start);
    public.wr_complete = Some(wr_complete);
    public.wr_abort = Some(wr_abort);
    public.wr_set_ud_addr = Some(wr_set_ud_addr);
    public.wr_set_sge = Some(wr_set_sge);
    public.wr_set_sge_list = Some(wr_set_sge_list);
    public.wr_set_inline_data = Some(wr_set_inline_data);
    public.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    public.wr_send = has(IBV_QP_EX_WITH_SEND).then_some(wr_send as _);
    public.wr_send_imm = has(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm as _);
    public.wr_rdma_read = has(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read as _);
    public.wr_rdma_write = has(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write as _);
    public.wr_rdma_write_imm = has(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm as _);
}

/// EFA's part of the same.
pub(crate) fn efadv(hints: bool) -> efadv_qp {
    efadv_qp { comp_mask: 0, wr_set_processing_hints: hints.then_some(set_processing_hints as _) }
}

/// Runs something on the stage of a queue pair whose program is between start and complete, as verbs.h demands.
#[inline]
unsafe fn staging(qp: *mut ibv_qp_ex, run: impl FnOnce(&Qp, &mut Inner)) {
    quiet((), || {
        if let Ok(qp) = unsafe { Qp::of(qp.cast()) }
            && qp.stage.open.get()
        {
            run(qp, unsafe { &mut *qp.stage.inner.get() });
        }
    });
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    quiet((), || {
        if let Ok(qp) = unsafe { Qp::of(qp.cast()) } {
            qp.stage.open();
        }
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    code(|| {
        let qp = unsafe { Qp::of(qp.cast())? };
        if !qp.stage.open.get() {
            return Err(EINVAL);
        }
        struct Close<'a>(&'a Stage);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        let _close = Close(&qp.stage);
        unsafe { &mut *qp.stage.inner.get() }.post(qp)
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    quiet((), || {
        if let Ok(qp) = unsafe { Qp::of(qp.cast()) } {
            qp.stage.close();
        }
    });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    unsafe { staging(qp, |qp, stage| stage.begin(qp, SendOp::Send { imm: None })) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    unsafe { staging(qp, |qp, stage| stage.begin(qp, SendOp::Send { imm: Some(u32::from_be(imm)) })) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    unsafe { staging(qp, |qp, stage| stage.begin(qp, SendOp::Read { addr, rkey })) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    unsafe { staging(qp, |qp, stage| stage.begin(qp, SendOp::Write { addr, rkey, imm: None })) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let imm = Some(u32::from_be(imm));
    unsafe { staging(qp, |qp, stage| stage.begin(qp, SendOp::Write { addr, rkey, imm })) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    unsafe {
        staging(qp, |_, stage| {
            stage.set(|wr| {
                wr.ah = Some(Ah::of(ah)?.number);
                (wr.qpn, wr.qkey) = (remote_qpn as u16, remote_qkey);
                Ok(())
            });
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    unsafe {
        staging(qp, |_, stage| {
            stage.set(|wr| {
                wr.data = Data::Sges;
                wr.sges.clear();
                wr.sges.push(Sge { addr, len: length, lkey });
                Ok(())
            });
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    unsafe {
        staging(qp, |_, stage| {
            stage.set(|wr| {
                let sges = list(sg_list, c_int::try_from(num_sge).map_err(|_| EINVAL)?)?;
                wr.data = Data::Sges;
                wr.sges.clear();
                wr.sges.try_extend_from_slice(sges).map_err(|_| EINVAL)
            });
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buf = ibv_data_buf { addr, length };
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buf) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf) {
    unsafe {
        staging(qp, |qp, stage| {
            stage.set(|wr| {
                if !matches!(wr.op, SendOp::Send { .. }) && !qp.inline_write {
                    return Err(EINVAL);
                }
                wr.data = Data::Inline;
                wr.inline.clear();
                for i in 0..num_buf {
                    let buf = buf_list.add(i).read();
                    let part = bytes(buf.addr.expose_provenance() as u64, buf.length)?;
                    wr.inline.try_extend_from_slice(part).map_err(|_| EINVAL)?;
                }
                Ok(())
            });
        });
    }
}

/// Hints say how work requests might be handled, not what they do.
unsafe extern "C" fn set_processing_hints(_: *mut efadv_qp, _: u32) {}
