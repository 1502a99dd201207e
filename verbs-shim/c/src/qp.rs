//! Queue pairs: made, changed, queried and destroyed.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use verbs_shim::{QpCap, QpInit, QpModify, QpState, QpType, SendOps};

use crate::abi::{arg, code, export, out, pointer};
use crate::bindings::{
    IBV_QP_CAP, IBV_QP_CUR_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN,
    IBV_QP_STATE, IBV_QPT_UD, efadv_qp, ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::context::{Context, Kind};
use crate::cq::Cq;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno};
use crate::pd_mr::Pd;
use crate::qp_ex::{self, Stage};

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    public: UnsafeCell<ibv_qp_ex>,
    pub(crate) efadv: UnsafeCell<efadv_qp>,
    pub(crate) context: &'static Context,
    pub(crate) qpn: u16,
    pub(crate) init: QpInit,
    /// Capacities as granted.
    pub(crate) cap: QpCap,
    /// All sends are signaled, whether they say so or not.
    pub(crate) sig_all: bool,
    /// It was made for the extended way of posting.
    extended: bool,
    pd: &'static Pd,
    pub(crate) stage: Stage,
}

impl Qp {
    #[inline]
    pub(crate) unsafe fn of<'a>(qp: *const ibv_qp) -> Result<&'a Qp, Errno> {
        unsafe { arg(qp.cast::<Qp>()) }
    }

    #[inline]
    pub(crate) fn public(&self) -> *mut ibv_qp_ex {
        self.public.get()
    }
}

// ---- made and destroyed

/// What EFA's interface adds to the making of a queue pair.
pub(crate) struct EfaInit {
    pub(crate) ty: QpType,
    pub(crate) unsolicited_write_recv: bool,
    pub(crate) inline_write: bool,
    pub(crate) hints: bool,
}

/// Makes a queue pair, and writes the capacities that were granted to `attr`.
pub(crate) unsafe fn create(attr: &mut ibv_qp_init_attr_ex, efa: &EfaInit) -> Result<*mut ibv_qp, Errno> {
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if attr.comp_mask & !known != 0 {
        return Err(EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || !attr.srq.is_null() {
        return Err(EINVAL);
    }
    let extended = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let ops = if extended { send_ops(attr.send_ops_flags, efa.ty)? } else { SendOps::default() };
    let pd = unsafe { Pd::of(attr.pd)? };
    let (send_cq, recv_cq) = unsafe { (Cq::of(attr.send_cq)?, Cq::of(attr.recv_cq)?) };
    let context = pd.context;
    let card = context.card()?;
    if !std::ptr::eq(send_cq.context, context) || !std::ptr::eq(recv_cq.context, context) {
        return Err(EINVAL);
    }
    let narrow = |n: u32| u16::try_from(n).map_err(|_| EINVAL);
    let init = QpInit {
        ty: efa.ty,
        pd: pd.id,
        send_cq: send_cq.id,
        recv_cq: recv_cq.id,
        cap: QpCap {
            send_wr: attr.cap.max_send_wr,
            recv_wr: attr.cap.max_recv_wr,
            send_sge: narrow(attr.cap.max_send_sge)?,
            recv_sge: narrow(attr.cap.max_recv_sge)?,
            inline: attr.cap.max_inline_data,
        },
        ops,
        unsolicited_write_recv: efa.unsolicited_write_recv,
        inline_write: efa.inline_write,
    };
    let qpn = card.nic.create_qp(init)?;
    let cap = card.nic.query_qp(qpn)?.cap;
    attr.cap = cap_of(&cap);
    // All fields of the structure are numbers and optional pointers.
    let mut public: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let base = &mut public.qp_base;
    base.context = context.public();
    base.qp_context = attr.qp_context;
    base.pd = attr.pd;
    base.send_cq = attr.send_cq;
    base.recv_cq = attr.recv_cq;
    base.handle = qpn.into();
    base.qp_num = qpn.into();
    base.state = QpState::Reset as c_int;
    base.qp_type = attr.qp_type;
    unsafe {
        libc::pthread_mutex_init(&raw mut base.mutex, null());
        libc::pthread_cond_init(&raw mut base.cond, null());
    }
    if extended {
        qp_ex::fill(&mut public, attr.send_ops_flags);
    }
    let qp = Box::into_raw(Box::new(Qp {
        public: UnsafeCell::new(public),
        efadv: UnsafeCell::new(qp_ex::efadv(efa.hints)),
        context,
        qpn,
        init,
        cap,
        sig_all: attr.sq_sig_all != 0,
        extended,
        pd,
        stage: Stage::new(),
    }));
    pd.join();
    context.objects.add(Kind::Qp, qp);
    Ok(qp.cast())
}

/// The operations that a program wants to post.
fn send_ops(flags: u64, ty: QpType) -> Result<SendOps, Errno> {
    let write = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let rdma = match ty {
        QpType::Srd => IBV_QP_EX_WITH_RDMA_READ | write,
        QpType::Ud => 0,
    };
    if flags & !(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | rdma) != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(SendOps { read: flags & IBV_QP_EX_WITH_RDMA_READ != 0, write: flags & write != 0 })
}

fn cap_of(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.send_wr,
        max_recv_wr: cap.recv_wr,
        max_send_sge: cap.send_sge.into(),
        max_recv_sge: cap.recv_sge.into(),
        max_inline_data: cap.inline,
    }
}

/// The long form of what a program passed in the short one.
pub(crate) fn long_form(pd: *mut ibv_pd, attr: &ibv_qp_init_attr) -> ibv_qp_init_attr_ex {
    // All fields of the structure are numbers and pointers.
    let zero: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..zero
    }
}

/// Datagrams, the only type that the general interface has here.
unsafe fn create_ud(attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    if attr.qp_type != IBV_QPT_UD {
        // No warning: programs ask in order to see what there is.
        tracing::info!(
            "queue pair of type {} refused: EFA has UD (4) here, and SRD by libefa (perftest: -c SRD)",
            attr.qp_type
        );
        return Err(EOPNOTSUPP);
    }
    unsafe {
        create(attr, &EfaInit { ty: QpType::Ud, unsolicited_write_recv: false, inline_write: false, hints: false })
    }
}

export!(
    "IBVERBS_1.1",
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        pointer(|| {
            let attr = unsafe { out(attr)? };
            let mut long = long_form(pd, attr);
            let qp = unsafe { create_ud(&mut long)? };
            attr.cap = long.cap;
            Ok(qp)
        })
    }
);

pub(crate) unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    pointer(|| unsafe {
        Context::of(context)?.nic()?;
        create_ud(out(attr)?)
    })
}

export!(
    "IBVERBS_1.1",
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        code(|| {
            let this = unsafe { Qp::of(qp)? };
            if !this.context.is_dead() {
                let card = this.context.card()?;
                card.rings.without_qp(this.qpn, || card.nic.destroy_qp(this.qpn))?;
                this.pd.part();
                this.context.objects.remove(Kind::Qp, qp);
            }
            drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
            Ok(())
        })
    }
);

/// Destroys the queue pair in the card.
pub(crate) fn abandon(qp: &Qp) {
    if let Ok(card) = qp.context.card() {
        // It is known to the card, because it was in the list of objects.
        let _ = card.rings.without_qp(qp.qpn, || card.nic.destroy_qp(qp.qpn));
    }
}

export!(
    "IBVERBS_1.6",
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        match unsafe { Qp::of(qp) } {
            Ok(this) if this.extended => this.public(),
            _ => null_mut(),
        }
    }
);

// ---- changed and queried

fn state(number: c_int) -> Result<QpState, Errno> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    usize::try_from(number).ok().and_then(|n| states.get(n)).copied().ok_or(EINVAL)
}

export!(
    "IBVERBS_1.1",
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
        const KNOWN: c_int = IBV_QP_STATE
            | IBV_QP_CUR_STATE
            | IBV_QP_EN_SQD_ASYNC_NOTIFY
            | IBV_QP_PKEY_INDEX
            | IBV_QP_PORT
            | IBV_QP_QKEY
            | IBV_QP_SQ_PSN
            | IBV_QP_RNR_RETRY;
        code(|| {
            let qp = unsafe { Qp::of(qp)? };
            let attr = unsafe { arg(attr)? };
            let card = qp.context.card()?;
            let has = |flag| attr_mask & flag != 0;
            // The kernel knows ports and states, before EFA's driver is asked.
            if has(IBV_QP_PORT) && attr.port_num != 1 {
                return Err(EINVAL);
            }
            let change = QpModify {
                state: if has(IBV_QP_STATE) { Some(state(attr.qp_state)?) } else { None },
                cur_state: if has(IBV_QP_CUR_STATE) { Some(state(attr.cur_qp_state)?) } else { None },
                pkey_index: has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
                port: has(IBV_QP_PORT).then_some(attr.port_num),
                qkey: has(IBV_QP_QKEY).then_some(attr.qkey),
                sq_psn: has(IBV_QP_SQ_PSN).then_some(attr.sq_psn),
                rnr_retry: has(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry),
                en_sqd_notify: has(IBV_QP_EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
            };
            if attr_mask & !KNOWN != 0 {
                return Err(EOPNOTSUPP);
            }
            let modify = || card.nic.modify_qp(qp.qpn, &change);
            match change.state {
                Some(QpState::Reset) => card.rings.reset_qp(qp.qpn, modify)?,
                _ => modify()?,
            }
            if let Some(state) = change.state {
                unsafe { (*qp.public()).qp_base.state = state as c_int };
            }
            Ok(())
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> c_int {
        const KNOWN: c_int = IBV_QP_STATE
            | IBV_QP_PKEY_INDEX
            | IBV_QP_PORT
            | IBV_QP_QKEY
            | IBV_QP_SQ_PSN
            | IBV_QP_CAP
            | IBV_QP_RNR_RETRY;
        code(|| {
            let qp = unsafe { Qp::of(qp)? };
            let (attr, init_attr) = unsafe { (out(attr)?, out(init_attr)?) };
            let nic = qp.context.nic()?;
            if attr_mask & !KNOWN != 0 {
                return Err(EOPNOTSUPP);
            }
            let now = nic.query_qp(qp.qpn)?;
            let public = qp.public().cast::<ibv_qp>();
            // All fields of the structures are numbers and pointers. Those that EFA's driver does not set stay 0, also
            // `cur_qp_state`.
            *attr = unsafe { std::mem::zeroed() };
            attr.qp_state = now.state as c_int;
            attr.qkey = now.qkey;
            attr.sq_psn = now.sq_psn;
            attr.rnr_retry = now.rnr_retry;
            attr.port_num = 1;
            attr.cap = cap_of(&now.cap);
            unsafe {
                *init_attr = ibv_qp_init_attr {
                    qp_context: (*public).qp_context,
                    send_cq: (*public).send_cq,
                    recv_cq: (*public).recv_cq,
                    srq: null_mut::<c_void>(),
                    cap: attr.cap,
                    qp_type: (*public).qp_type,
                    // The kernel takes what EFA's driver does not set for this.
                    sq_sig_all: 1,
                };
                (*public).state = attr.qp_state;
            }
            Ok(())
        })
    }
);

export!(
    "IBVERBS_1.10",
    fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
        code(|| Err(EOPNOTSUPP))
    }
);

export!(
    "IBVERBS_1.10",
    fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        code(|| {
            *unsafe { out(ece)? } = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
            Err(EOPNOTSUPP)
        })
    }
);

export!(
    "IBVERBS_1.14",
    fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> c_int {
        // Packets take many paths, and are placed as they come.
        0
    }
);
