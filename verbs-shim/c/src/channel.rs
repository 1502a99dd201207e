//! Completion channels.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use crate::abi::{arg, code, export, pointer, waiting};
use crate::bindings::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::context::{Context, Kind};
use crate::cq::Cq;
use crate::errno::{EBUSY, EINVAL, EIO, Errno};
use crate::event::EventQueue;

/// A completion channel. `refcnt` of the public part counts completion queues, under the lock of the queue.
#[repr(C)]
pub(crate) struct Channel {
    public: UnsafeCell<ibv_comp_channel>,
    context: &'static Context,
    events: EventQueue<*const Cq>,
}

impl Channel {
    pub(crate) unsafe fn of<'a>(channel: *const ibv_comp_channel) -> Result<&'a Channel, Errno> {
        unsafe { arg(channel.cast::<Channel>()) }
    }

    /// Whether it was made in this context.
    pub(crate) fn is_of(&self, context: &Context) -> bool {
        std::ptr::eq(self.context, context)
    }

    /// A completion queue begins, or ceases, to use it.
    pub(crate) fn count(&self, by: c_int) {
        self.events.locked(|| unsafe { (*self.public.get()).refcnt += by });
    }

    /// An event for a completion queue.
    pub(crate) fn push(&self, cq: &Cq) {
        // As the kernel's driver has it, for programs that read the descriptor themselves.
        self.events.push(cq, cq.public().expose_provenance() as u64);
    }

    /// Whether there is an event of a completion queue that nobody has taken.
    pub(crate) fn has(&self, cq: &Cq) -> bool {
        self.events.has(|&other| std::ptr::eq(other, cq))
    }

    /// Drops what nobody has taken of a completion queue, and says how much that was.
    pub(crate) fn purge(&self, cq: &Cq) -> u32 {
        self.events.purge(|&other| std::ptr::eq(other, cq))
    }
}

export!(
    "IBVERBS_1.0",
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
        pointer(|| {
            let context = unsafe { Context::of(context)? };
            context.nic()?;
            let events = EventQueue::new()?;
            let public = UnsafeCell::new(ibv_comp_channel { context: context.public(), fd: events.fd(), refcnt: 0 });
            let channel = Box::into_raw(Box::new(Channel { public, context, events }));
            context.objects.add(Kind::Channel, channel);
            Ok(channel.cast())
        })
    }
);

export!(
    "IBVERBS_1.0",
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
        code(|| {
            let this = unsafe { Channel::of(channel)? };
            if !this.context.is_dead() {
                if this.events.locked(|| unsafe { (*this.public.get()).refcnt }) > 0 {
                    return Err(EBUSY);
                }
                this.context.objects.remove(Kind::Channel, channel);
            }
            drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
            Ok(())
        })
    }
);

export!(
    "IBVERBS_1.1",
    cancellable fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int {
        waiting(|| {
            let channel = unsafe { Channel::of(channel)? };
            if cq.is_null() || cq_context.is_null() {
                return Err(EINVAL);
            }
            // In a child, events are the parent's, though it has their descriptor.
            if channel.context.is_dead() {
                return Err(EIO);
            }
            Ok(channel.events.take(|taken| {
                let taken = unsafe { &*taken };
                unsafe {
                    *cq = taken.public().cast();
                    *cq_context = (*taken.public()).cq_context;
                }
            }))
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
        code(|| {
            unsafe { Cq::of(cq)? }.ack(nevents);
            Ok(())
        });
    }
);
