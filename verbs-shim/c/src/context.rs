//! Open devices.

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_shim::lock::Mutex;
use verbs_shim::{CardEvent, CqId, Nic, NicSink, spare_standard};

use crate::abi::{code, export, pointer};
use crate::async_event::Overrun;
use crate::bindings::{ibv_context, ibv_context_ops, ibv_device, ibv_pd, ibv_qp, ibv_recv_wr, verbs_context};
use crate::cq::Cq;
use crate::device::{Card, Device, resolve};
use crate::errno::{EBUSY, EINVAL, EIO, EMFILE, EOPNOTSUPP, Errno};
use crate::event::EventQueue;
use crate::{cq, cq_ex, fork, log, pd_mr, post, qp, query};

/// An open device, with the structure that programs see at its end.
#[repr(C)]
pub(crate) struct Context {
    /// Generation of the process that opened it; 0 when it is closed.
    generation: AtomicU32,
    card: UnsafeCell<Option<Card>>,
    pub(crate) device: &'static Device,
    /// Gone when it is closed.
    files: UnsafeCell<Option<Files>>,
    /// What was made in it and still exists.
    pub(crate) objects: Objects,
    public: UnsafeCell<verbs_context>,
}

/// The descriptors of an open device.
pub(crate) struct Files {
    pub(crate) events: EventQueue<Overrun>,
    /// Nothing is ever read from it; programs expect a descriptor.
    _cmd_fd: OwnedFd,
}

const PUBLIC: usize = offset_of!(Context, public) + offset_of!(verbs_context, context);

impl Context {
    /// The context behind a pointer of the program.
    #[inline]
    pub(crate) unsafe fn of<'a>(context: *const ibv_context) -> Result<&'a Context, Errno> {
        if context.is_null() {
            return Err(EINVAL);
        }
        Ok(unsafe { &*context.byte_sub(PUBLIC).cast::<Context>() })
    }

    /// The pointer that programs have.
    pub(crate) fn public(&self) -> *mut ibv_context {
        unsafe { &raw mut (*self.public.get()).context }
    }

    /// Its card. `EIO` if the context is closed or belongs to the process that forked this one.
    #[inline]
    pub(crate) fn nic(&self) -> Result<&Nic, Errno> {
        Ok(&self.card()?.nic)
    }

    /// The card, and who gets its events.
    #[inline]
    pub(crate) fn card(&self) -> Result<&Card, Errno> {
        if self.generation.load(Ordering::Relaxed) != fork::generation() {
            return Err(EIO);
        }
        // It is there while the generation is not 0, and taken away by the program's last call only.
        unsafe { (*self.card.get()).as_ref() }.ok_or(EIO)
    }

    /// Its descriptors. `EIO` as for the card: what is in them is the parent's.
    pub(crate) fn files(&self) -> Result<&Files, Errno> {
        if self.is_dead() {
            return Err(EIO);
        }
        // As with the card.
        unsafe { (*self.files.get()).as_ref() }.ok_or(EIO)
    }

    /// Whether it is dead: then objects of it are only forgotten.
    pub(crate) fn is_dead(&self) -> bool {
        self.generation.load(Ordering::Relaxed) != fork::generation()
    }
}

/// What exists in a context, so that it can be destroyed with it.
#[derive(Default)]
pub(crate) struct Objects(Mutex<BTreeSet<(Kind, usize)>>);

/// Kinds of objects, in the order in which they are destroyed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Qp,
    Cq,
    Channel,
    Mr,
    Ah,
    ParentDomain,
    Pd,
    Td,
}

impl Objects {
    pub(crate) fn add<T>(&self, kind: Kind, object: *const T) {
        self.0.lock().insert((kind, object.expose_provenance()));
    }

    pub(crate) fn remove<T>(&self, kind: Kind, object: *const T) {
        self.0.lock().remove(&(kind, object.addr()));
    }

    fn take_all(&self) -> Vec<(Kind, usize)> {
        std::mem::take(&mut *self.0.lock()).into_iter().collect()
    }
}

/// Passes events of a card on to the objects that programs see. The card calls it with its lock held.
#[derive(Default)]
pub(crate) struct Sink {
    cqs: Mutex<BTreeMap<u32, *const Cq>>,
}

// Objects are removed before they are freed.
unsafe impl Send for Sink {}
unsafe impl Sync for Sink {}

impl Sink {
    pub(crate) fn add_cq(&self, id: CqId, cq: &Cq) {
        self.cqs.lock().insert(id.0, cq);
    }

    /// Called after the queue is gone from the card; another may have its number already.
    pub(crate) fn remove_cq(&self, id: CqId, cq: &Cq) {
        let mut cqs = self.cqs.lock();
        if cqs.get(&id.0).is_some_and(|&known| std::ptr::eq(known, cq)) {
            cqs.remove(&id.0);
        }
    }
}

/// The sink as the card owns it.
pub(crate) struct Outlet(pub(crate) Arc<Sink>);

impl NicSink for Outlet {
    fn event(&self, event: CardEvent) {
        match event {
            CardEvent::Completion(id) => {
                if let Some(&cq) = self.0.cqs.lock().get(&id.0) {
                    unsafe { &*cq }.notify();
                }
            }
            CardEvent::CqOverrun(id) => {
                if let Some(&cq) = self.0.cqs.lock().get(&id.0) {
                    let cq = unsafe { &*cq };
                    log::error(format_args!(
                        "a completion queue is full, and completions are lost: make it deeper, or poll sooner"
                    ));
                    if let Ok(files) = cq.context.files() {
                        files.events.push(Overrun::of(cq), 0);
                    }
                }
            }
            // The device tells nobody but the log.
            _ => {}
        }
    }
}

unsafe extern "C" fn alloc_mw(_: *mut ibv_pd, _: c_int) -> *mut c_void {
    pointer(|| Err(EOPNOTSUPP))
}

unsafe extern "C" fn bind_mw(_: *mut ibv_qp, _: *mut c_void, _: *mut c_void) -> c_int {
    code(|| Err(EOPNOTSUPP))
}

unsafe extern "C" fn dealloc_mw(_: *mut c_void) -> c_int {
    code(|| Err(EOPNOTSUPP))
}

unsafe extern "C" fn post_srq_recv(_: *mut c_void, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    if let Some(bad) = unsafe { bad.as_mut() } {
        *bad = wr;
    }
    code(|| Err(EOPNOTSUPP))
}

fn fill(public: &mut verbs_context, device: *mut ibv_device, async_fd: c_int, cmd_fd: c_int) {
    public.query_port = Some(query::query_port);
    public.query_device_ex = Some(query::query_device_ex);
    public.create_cq_ex = Some(cq_ex::create_cq_ex);
    public.create_qp_ex = Some(qp::create_qp_ex);
    public.alloc_td = Some(pd_mr::alloc_td);
    public.dealloc_td = Some(pd_mr::dealloc_td);
    public.alloc_parent_domain = Some(pd_mr::alloc_parent_domain);
    public.sz = size_of::<verbs_context>();
    let context = &mut public.context;
    context.device = device;
    context.ops = ibv_context_ops {
        _compat_query_device: Some(query::ibv_query_device),
        _compat_query_port: Some(query::ibv_query_port),
        alloc_mw: Some(alloc_mw),
        bind_mw: Some(bind_mw),
        dealloc_mw: Some(dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..context.ops
    };
    context.cmd_fd = cmd_fd;
    context.async_fd = async_fd;
    context.num_comp_vectors = 1;
    unsafe { libc::pthread_mutex_init(&raw mut context.mutex, std::ptr::null()) };
    // Says that there is a verbs_context around it.
    context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
}

export!(
    "IBVERBS_1.1",
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
        pointer(|| {
            let known = unsafe { resolve(device)? };
            let events = EventQueue::new()?;
            let cmd_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if cmd_fd < 0 {
                return Err(Errno::last());
            }
            let cmd_fd = spare_standard(unsafe { OwnedFd::from_raw_fd(cmd_fd) }).map_err(|_| EMFILE)?;
            let card = known.acquire()?;
            // All fields of the structure are numbers and optional pointers.
            let mut public: verbs_context = unsafe { std::mem::zeroed() };
            fill(&mut public, device, events.fd(), cmd_fd.as_raw_fd());
            let context = Box::new(Context {
                generation: AtomicU32::new(fork::generation()),
                card: UnsafeCell::new(Some(card)),
                device: known,
                files: UnsafeCell::new(Some(Files { events, _cmd_fd: cmd_fd })),
                objects: Objects::default(),
                public: UnsafeCell::new(public),
            });
            let public = context.public();
            let _ = Box::into_raw(context);
            Ok(public)
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_close_device(context: *mut ibv_context) -> c_int {
        code(|| {
            let this = unsafe { Context::of(context)? };
            if this.is_dead() {
                // Everything of it belongs to another process, or is gone.
                return Ok(());
            }
            // To close the card half is worse than not at all.
            if this.device.is_held_here() || this.nic()?.is_held_here() {
                return Err(EBUSY);
            }
            let left = this.objects.take_all();
            for &(kind, object) in &left {
                let object = std::ptr::with_exposed_provenance(object);
                unsafe { destroy(kind, object) };
            }
            this.generation.store(0, Ordering::Relaxed);
            let card = unsafe { (*this.card.get()).take() };
            if let Some(card) = card {
                this.device.release(card);
            }
            drop(unsafe { (*this.files.get()).take() });
            // Programs that left objects behind may still destroy them: they find a context that is closed.
            if left.is_empty() {
                drop(unsafe { Box::from_raw(context.byte_sub(PUBLIC).cast::<Context>()) });
            }
            Ok(())
        })
    }
);

/// Takes an object away from the card; what the program sees of it stays.
unsafe fn destroy(kind: Kind, object: *const c_void) {
    unsafe {
        match kind {
            Kind::Qp => qp::abandon(&*object.cast()),
            Kind::Cq => cq::abandon(&*object.cast()),
            Kind::Mr => pd_mr::abandon_mr(&*object.cast()),
            Kind::Ah => crate::ah::abandon(&*object.cast()),
            Kind::Pd => pd_mr::abandon_pd(&*object.cast()),
            Kind::Channel | Kind::ParentDomain | Kind::Td => {}
        }
    }
}
