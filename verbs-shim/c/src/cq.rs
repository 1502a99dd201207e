//! Completion queues, and polling them the plain way.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::lock_api::RawMutex as _;
use verbs_shim::lock::{RawMutex, me};
use verbs_shim::{Completion, CqId, Opcode, Status};

use crate::abi::{arg, code, export, hot_minus_one, pointer};
use crate::bindings::{
    IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_WITH_IMM, efadv_cq,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc,
};
use crate::channel::Channel;
use crate::context::{Context, Kind};
use crate::cq_ex;
use crate::errno::{EINVAL, EIO, EOPNOTSUPP, Errno};
use crate::pd_mr::Pd;

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    public: UnsafeCell<ibv_cq_ex>,
    pub(crate) efadv: UnsafeCell<efadv_cq>,
    pub(crate) context: &'static Context,
    pub(crate) id: CqId,
    channel: Option<&'static Channel>,
    domain: Option<&'static Pd>,
    /// Whoever polls; a program that polls the extended way holds it from start to end.
    lock: RawMutex,
    /// The thread that polls the extended way; 0 for none.
    poller: AtomicUsize,
    entries: UnsafeCell<[Completion; BATCH]>,
    /// Whether the first of the entries is what a poll session looks at: its room is free when the session leaves it.
    is_current: Cell<bool>,
    /// Events that programs were sent or have taken, to compare with those that they acknowledged.
    events_sent: AtomicU32,
    async_events_taken: AtomicU32,
}

/// Completions that are taken from the card at a time.
const BATCH: usize = 16;

thread_local! {
    /// The queue in which the last extended poll session of this thread would have been, had there been anything in it.
    static FAILED: Cell<*const Cq> = const { Cell::new(null()) };
}

/// An extended poll session.
pub(crate) struct Session<'a>(&'a Cq);

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Cq {
    #[inline]
    pub(crate) unsafe fn of<'a>(cq: *const ibv_cq) -> Result<&'a Cq, Errno> {
        unsafe { arg(cq.cast::<Cq>()) }
    }

    #[inline]
    pub(crate) fn public(&self) -> *mut ibv_cq_ex {
        self.public.get()
    }

    /// The entry that the program looks at.
    ///
    /// # Safety
    /// The caller is in a poll session.
    #[inline]
    pub(crate) unsafe fn current(&self) -> &Completion {
        unsafe { &(*self.entries.get())[0] }
    }

    // ---- polling

    /// Begins an extended poll session, which ends with what is returned unless that is forgotten. `EINVAL` if this thread is
    /// in one.
    #[inline]
    pub(crate) fn begin(&self) -> Result<Session<'_>, Errno> {
        // In a child it may be locked for ever.
        if self.context.is_dead() {
            return Err(EIO);
        }
        let me = me();
        if self.poller.load(Ordering::Relaxed) == me {
            return Err(EINVAL);
        }
        self.lock.lock();
        self.poller.store(me, Ordering::Relaxed);
        Ok(Session(self))
    }

    /// Ends the session of this thread, or of another one for which this thread does it: that which polls may be a coroutine,
    /// which threads take turns to run.
    #[inline]
    pub(crate) fn end(&self) {
        let poller = self.poller.load(Ordering::Relaxed);
        if poller != 0 && (poller == me() || !self.failed_here()) {
            // The session is this one.
            unsafe { self.leave() };
            self.poller.store(0, Ordering::Relaxed);
            // It was locked by `begin`.
            unsafe { self.lock.unlock() };
        }
    }

    /// Whether the last session that this thread tried to begin found nothing: some programs (pyverbs) end those, too.
    #[cold]
    fn failed_here(&self) -> bool {
        FAILED.get() == std::ptr::from_ref(self)
    }

    /// A session of this thread found something when it began, or nothing.
    #[inline]
    pub(crate) fn note_begun(&self, found: bool) {
        FAILED.set(if found { null() } else { self });
    }

    /// Goes on to the next entry; `false` if there is none.
    ///
    /// # Safety
    /// The caller is in a poll session.
    #[inline]
    pub(crate) unsafe fn next(&self) -> Result<bool, Errno> {
        unsafe { self.leave() };
        let entries = unsafe { &mut *self.entries.get() };
        let found = self.context.nic()?.take_cq(self.id, &mut entries[..1]) > 0;
        self.is_current.set(found);
        Ok(found)
    }

    /// The program is done with the current entry, if there is one.
    ///
    /// # Safety
    /// The caller is in a poll session.
    #[inline]
    unsafe fn leave(&self) {
        if self.is_current.replace(false)
            && let Ok(nic) = self.context.nic()
        {
            nic.release(unsafe { self.current() });
        }
    }

    /// Runs something with the queue locked.
    fn locked<R>(&self, run: impl FnOnce() -> R) -> R {
        struct Unlock<'a>(&'a RawMutex);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                // It was locked where this guard was made.
                unsafe { self.0.unlock() };
            }
        }
        self.lock.lock();
        let _unlock = Unlock(&self.lock);
        run()
    }

    // ---- events

    /// An armed queue got an entry.
    pub(crate) fn notify(&self) {
        if let Some(channel) = self.channel {
            self.events_sent.fetch_add(1, Ordering::Relaxed);
            channel.push(self);
        }
    }

    /// The same, if there is no such event that the program has not taken yet.
    pub(crate) fn notify_once(&self) {
        if !self.channel.is_some_and(|channel| channel.has(self)) {
            self.notify();
        }
    }

    pub(crate) fn async_event_taken(&self) {
        self.async_events_taken.fetch_add(1, Ordering::Relaxed);
    }

    /// The program is done with so many completion events.
    pub(crate) fn ack(&self, events: u32) {
        self.acknowledge(unsafe { &raw mut (*self.public()).comp_events_completed }, events);
    }

    /// The program is done with an asynchronous event.
    pub(crate) fn ack_async(&self) {
        self.acknowledge(unsafe { &raw mut (*self.public()).async_events_completed }, 1);
    }

    fn acknowledge(&self, counter: *mut u32, events: u32) {
        // Nobody waits for it, and in a child the mutex may be locked for ever.
        if self.context.is_dead() {
            return;
        }
        let public = self.public();
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*public).mutex);
            *counter = (*counter).wrapping_add(events);
            libc::pthread_cond_signal(&raw mut (*public).cond);
            libc::pthread_mutex_unlock(&raw mut (*public).mutex);
        }
    }

    /// Whether it tells the addresses of senders.
    pub(crate) fn tells_sgid(&self) -> bool {
        unsafe { (*self.efadv.get()).wc_read_sgid.is_some() }
    }

    /// Whether programs hear of its entries by a channel.
    pub(crate) fn has_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// Waits until the program has acknowledged all events that it took.
    fn wait_for_acks(&self) {
        let public = self.public();
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*public).mutex);
            while (*public).comp_events_completed != self.events_sent.load(Ordering::Relaxed)
                || (*public).async_events_completed != self.async_events_taken.load(Ordering::Relaxed)
            {
                libc::pthread_cond_wait(&raw mut (*public).cond, &raw mut (*public).mutex);
            }
            libc::pthread_mutex_unlock(&raw mut (*public).mutex);
        }
    }
}

/// What a completion queue is made of.
pub(crate) struct CqInit {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    /// What can be read of completions in the extended way (`IBV_WC_EX_WITH_*`).
    pub(crate) wc_flags: u64,
    /// The same of EFA's extensions (`EFADV_WC_EX_WITH_*`).
    pub(crate) efa_wc_flags: u64,
    /// The parent domain that it is for.
    pub(crate) domain: Option<&'static Pd>,
}

pub(crate) unsafe fn create(context: &'static Context, init: &CqInit) -> Result<*mut ibv_cq_ex, Errno> {
    let card = context.card()?;
    let channel = if init.channel.is_null() { None } else { Some(unsafe { Channel::of(init.channel)? }) };
    if init.comp_vector >= 1 || channel.is_some_and(|c| !c.is_of(context)) {
        return Err(EINVAL);
    }
    let id = card.nic.create_cq(init.cqe)?;
    // All fields of the structure are numbers and optional pointers.
    let mut public: ibv_cq_ex = unsafe { std::mem::zeroed() };
    public.context = context.public();
    public.channel = init.channel;
    public.cq_context = init.cq_context;
    public.handle = id.0;
    public.cqe = card.nic.cq_depth(id) as c_int;
    unsafe {
        libc::pthread_mutex_init(&raw mut public.mutex, null());
        libc::pthread_cond_init(&raw mut public.cond, null());
    }
    cq_ex::fill(&mut public, init.wc_flags);
    let cq = Box::into_raw(Box::new(Cq {
        public: UnsafeCell::new(public),
        efadv: UnsafeCell::new(cq_ex::efadv(init.efa_wc_flags)),
        context,
        id,
        channel,
        domain: init.domain,
        lock: RawMutex::INIT,
        poller: AtomicUsize::new(0),
        entries: UnsafeCell::new([Completion::EMPTY; BATCH]),
        is_current: Cell::new(false),
        events_sent: AtomicU32::new(0),
        async_events_taken: AtomicU32::new(0),
    }));
    card.sink.add_cq(id, unsafe { &*cq });
    if let Some(channel) = channel {
        channel.count(1);
    }
    if let Some(domain) = init.domain {
        domain.join();
    }
    context.objects.add(Kind::Cq, cq);
    Ok(cq.cast())
}

export!(
    "IBVERBS_1.1",
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq {
        pointer(|| {
            let context = unsafe { Context::of(context)? };
            let cqe = u32::try_from(cqe).map_err(|_| EINVAL)?;
            let comp_vector = u32::try_from(comp_vector).map_err(|_| EINVAL)?;
            let init = CqInit { cqe, cq_context, channel, comp_vector, wc_flags: 0, efa_wc_flags: 0, domain: None };
            Ok(unsafe { create(context, &init)? }.cast())
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
        code(|| {
            let this = unsafe { Cq::of(cq)? };
            if !this.context.is_dead() {
                let card = this.context.card()?;
                card.rings.without_cq(this.id, || card.nic.destroy_cq(this.id))?;
                card.sink.remove_cq(this.id, this);
                this.context.objects.remove(Kind::Cq, cq);
                this.context.files()?.events.purge(|event| event.is_of(this));
                if let Some(channel) = this.channel {
                    let unseen = channel.purge(this);
                    this.events_sent.fetch_sub(unseen, Ordering::Relaxed);
                    channel.count(-1);
                }
                if let Some(domain) = this.domain {
                    domain.part();
                }
                this.wait_for_acks();
            }
            drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
            Ok(())
        })
    }
);

/// Destroys the queue in the card.
pub(crate) fn abandon(cq: &Cq) {
    if let Ok(card) = cq.context.card() {
        // Its queue pairs went before it.
        let _ = card.rings.without_cq(cq.id, || card.nic.destroy_cq(cq.id));
        card.sink.remove_cq(cq.id, cq);
    }
}

/// The verbs' opcode of a completion. A read counts as a send: EFA's library knows no other opcode for it.
#[inline]
pub(crate) fn opcode(opcode: Opcode) -> c_int {
    match opcode {
        Opcode::Send | Opcode::RdmaRead => IBV_WC_SEND,
        Opcode::RdmaWrite => IBV_WC_RDMA_WRITE,
        Opcode::Recv => IBV_WC_RECV,
        Opcode::RecvRdmaWithImm => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// The verbs' status of a completion.
#[inline]
pub(crate) fn status(status: Status) -> c_int {
    if status == Status::Ok { 0 } else { status.info().wc_status as c_int }
}

/// A completion as the verbs have it.
#[inline]
fn wc(entry: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: entry.wr_id,
        status: status(entry.status),
        opcode: opcode(entry.opcode),
        vendor_err: entry.status.code().into(),
        byte_len: entry.byte_len,
        imm_data: entry.imm.unwrap_or(0).to_be(),
        qp_num: entry.qpn.into(),
        src_qp: entry.src_qpn.into(),
        wc_flags: if entry.imm.is_some() { IBV_WC_WITH_IMM } else { 0 },
        pkey_index: 0,
        slid: entry.ah,
        sl: 0,
        dlid_path_bits: 0,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wcs: *mut ibv_wc) -> c_int {
    hot_minus_one(|| {
        let cq = unsafe { Cq::of(cq)? };
        // Before the lock, which in a child may be locked for ever.
        let nic = cq.context.nic()?;
        if num_entries < 0 || (wcs.is_null() && num_entries > 0) || cq.poller.load(Ordering::Relaxed) == me() {
            return Err(EINVAL);
        }
        let wanted = num_entries as usize;
        cq.locked(|| {
            let entries = unsafe { &mut *cq.entries.get() };
            let mut n = 0;
            while n < wanted {
                let room = BATCH.min(wanted - n);
                let taken = nic.poll_cq(cq.id, &mut entries[..room]);
                for entry in &entries[..taken] {
                    unsafe { wcs.add(n).write(wc(entry)) };
                    n += 1;
                }
                // Entries that are not there yet need not be asked for.
                if taken < BATCH {
                    break;
                }
            }
            Ok(n as c_int)
        })
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    code(|| {
        let cq = unsafe { Cq::of(cq)? };
        // There are no solicited events, as no work request can ask for one.
        if solicited_only != 0 {
            return Err(EOPNOTSUPP);
        }
        let card = cq.context.card()?;
        // Without a channel hardware is armed all the same, and nobody hears of it.
        if cq.channel.is_none() || card.rings.arm(cq.id) {
            return Ok(());
        }
        Ok(card.nic.arm_cq(cq.id)?)
    })
}
