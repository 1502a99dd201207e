//! Posting the extended way: work requests are staged between start and complete, and posted all or none.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};

use arrayvec::ArrayVec;
use parking_lot::lock_api::RawMutex as _;
use verbs_shim::card::profile::{MAX_INLINE, MAX_SGE};
use verbs_shim::lock::RawMutex;
use verbs_shim::{SendData, SendOp, SendWr, Sge};

use crate::abi::{hot_code, quiet};
use crate::ah::Ah;
use crate::bindings::{
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, efadv_qp, ibv_ah, ibv_data_buf, ibv_qp_ex, ibv_sge,
};
use crate::errno::{EINVAL, ENOMEM, Errno};
use crate::post::{bytes, has_good_flags, list, refusal};
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
    /// What is staged, without its data, which is in `buffers`.
    wrs: Vec<SendWr<'static>>,
    /// The last of them has an address, without which it cannot be posted.
    addressed: bool,
    /// The data of each work request. They never become fewer, so that staging allocates nothing after a while.
    buffers: Vec<Buffers>,
}

/// The data of a work request that is being built.
#[derive(Default)]
struct Buffers {
    is_inline: bool,
    sges: ArrayVec<Sge, MAX_SGE>,
    inline: ArrayVec<u8, MAX_INLINE>,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        let inner = Inner { error: Ok(()), wrs: Vec::new(), addressed: true, buffers: Vec::new() };
        Stage { lock: RawMutex::INIT, open: Cell::new(false), inner: UnsafeCell::new(inner) }
    }

    fn open(&self) {
        self.lock.lock();
        self.open.set(true);
        let inner = unsafe { &mut *self.inner.get() };
        (inner.error, inner.addressed) = (Ok(()), true);
        inner.wrs.clear();
    }

    fn close(&self) {
        if self.open.replace(false) {
            // It was locked by `open`.
            unsafe { self.lock.unlock() };
        }
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
    // Inlined where the operation is known: it is written in parts, which a copy of it would have to wait for.
    #[inline(always)]
    fn begin(&mut self, qp: &Qp, op: SendOp) {
        let public = qp.public();
        let (wr_id, flags) = unsafe { ((*public).wr_id, (*public).wr_flags) };
        // That data is inline is told by how it is set; some programs say it here, too.
        if !has_good_flags(qp, flags) {
            self.fail(EINVAL);
        } else if self.wrs.len() >= qp.cap.send_wr as usize {
            self.fail(ENOMEM);
        }
        self.check_address();
        if self.error.is_err() {
            return;
        }
        match self.buffers.get_mut(self.wrs.len()) {
            Some(buffers) => buffers.clear(),
            None => self.buffers.push(Buffers::default()),
        }
        self.addressed = false;
        self.wrs.push(SendWr { wr_id, op, ah: 0, qpn: 0, qkey: 0, data: SendData::Sges(&[]) });
    }

    /// The work request that was begun last is complete.
    #[inline]
    fn check_address(&mut self) {
        if !self.addressed {
            self.fail(EINVAL);
        }
    }

    /// Sets something of the work request that was begun last.
    #[inline]
    fn set(&mut self, set: impl FnOnce(&mut SendWr<'static>, &mut Buffers) -> Result<(), Errno>) {
        if self.error.is_err() {
            return;
        }
        let outcome = match self.wrs.len().checked_sub(1) {
            Some(last) => set(&mut self.wrs[last], &mut self.buffers[last]),
            None => Err(EINVAL),
        };
        if let Err(errno) = outcome {
            self.fail(errno);
        }
    }

    /// Posts what is staged.
    #[inline]
    fn post(&mut self, qp: &Qp) -> Result<(), Errno> {
        self.check_address();
        // The last that is staged is the one with the fault, or the one before if that has wrong flags.
        self.error.map_err(|fault| self.wrs.len().checked_sub(1).map_or(fault, |last| refusal(qp, last, fault)))?;
        let nic = qp.context.nic()?;
        if self.wrs.is_empty() {
            return Ok(());
        }
        for (wr, buffers) in self.wrs.iter_mut().zip(&self.buffers) {
            // The reference ends in this call: the list is cleared below, before buffers can change.
            wr.data = unsafe { std::mem::transmute::<SendData<'_>, SendData<'static>>(buffers.data()) };
        }
        let outcome = nic.post_send_all(qp.qpn, &self.wrs);
        self.wrs.clear();
        Ok(outcome?)
    }
}

impl Buffers {
    #[inline]
    fn clear(&mut self) {
        self.is_inline = false;
        self.sges.clear();
        self.inline.clear();
    }

    #[inline]
    fn data(&self) -> SendData<'_> {
        if self.is_inline { SendData::Inline(&self.inline) } else { SendData::Sges(&self.sges) }
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
    hot_code(|| {
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
        staging(qp, |qp, stage| {
            stage.addressed = true;
            stage.set(|wr, _| {
                (wr.ah, wr.qpn, wr.qkey) = (Ah::of(ah)?.number_for(qp), remote_qpn as u16, remote_qkey);
                Ok(())
            });
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    unsafe {
        staging(qp, |_, stage| {
            stage.set(|_, buffers| {
                buffers.clear();
                buffers.sges.push(Sge { addr, len: length, lkey });
                Ok(())
            });
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    unsafe {
        staging(qp, |_, stage| {
            stage.set(|_, buffers| {
                let sges = list(sg_list, c_int::try_from(num_sge).map_err(|_| EINVAL)?)?;
                buffers.clear();
                buffers.sges.try_extend_from_slice(sges).map_err(|_| EINVAL)
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
        staging(qp, |_, stage| {
            stage.set(|_, buffers| {
                buffers.clear();
                buffers.is_inline = true;
                for i in 0..num_buf {
                    let buf = buf_list.add(i).read();
                    let part = bytes(buf.addr.expose_provenance() as u64, buf.length)?;
                    buffers.inline.try_extend_from_slice(part).map_err(|_| EINVAL)?;
                }
                Ok(())
            });
        });
    }
}

/// Hints say how work requests might be handled, not what they do.
unsafe extern "C" fn set_processing_hints(_: *mut efadv_qp, _: u32) {}
