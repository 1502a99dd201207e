//! Protection domains, thread and parent domains, memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use verbs_shim::{Access, PdId, RawRegion};

use crate::abi::{arg, code, export, pointer};
use crate::bindings::{
    IBV_ACCESS_KNOWN, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT,
    IBV_REREG_MR_FLAGS_SUPPORTED, ibv_context, ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::context::{Context, Kind};
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno};
use crate::mapping;

/// A protection domain, or a parent domain, which is another name for one.
#[repr(C)]
pub(crate) struct Pd {
    public: UnsafeCell<ibv_pd>,
    pub(crate) context: &'static Context,
    pub(crate) id: PdId,
    /// What a parent domain was made of.
    parent: Option<(&'static Pd, Option<&'static Td>)>,
    /// Parent domains made of it; of a parent domain, the queues and queue pairs.
    users: AtomicU32,
}

impl Pd {
    #[inline]
    pub(crate) unsafe fn of<'a>(pd: *const ibv_pd) -> Result<&'a Pd, Errno> {
        unsafe { arg(pd.cast::<Pd>()) }
    }

    pub(crate) fn public(&self) -> *mut ibv_pd {
        self.public.get()
    }

    /// It is a parent domain.
    pub(crate) fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Something was made with it. The card counts what uses a plain domain, but knows no parent domain.
    pub(crate) fn join(&self) {
        if self.is_parent() {
            self.users.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It is gone.
    pub(crate) fn part(&self) {
        if self.is_parent() {
            self.users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn make(context: &'static Context, id: PdId, parent: Option<(&'static Pd, Option<&'static Td>)>) -> *mut ibv_pd {
        let public = UnsafeCell::new(ibv_pd { context: context.public(), handle: id.0 });
        let kind = if parent.is_some() { Kind::ParentDomain } else { Kind::Pd };
        let pd = Box::into_raw(Box::new(Pd { public, context, id, parent, users: AtomicU32::new(0) }));
        context.objects.add(kind, pd);
        pd.cast()
    }
}

/// A thread domain: a promise of the program about its threads, of which nothing is made.
#[repr(C)]
pub(crate) struct Td {
    public: UnsafeCell<ibv_td>,
    context: &'static Context,
    users: AtomicU32,
}

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    public: UnsafeCell<ibv_mr>,
    context: &'static Context,
    lkey: u32,
}

export!(
    "IBVERBS_1.1",
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        pointer(|| {
            let context = unsafe { Context::of(context)? };
            Ok(Pd::make(context, context.nic()?.alloc_pd()?, None))
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        code(|| {
            let this = unsafe { Pd::of(pd)? };
            if !this.context.is_dead() {
                if this.users.load(Ordering::Relaxed) > 0 {
                    return Err(EBUSY);
                }
                match this.parent {
                    Some((parent, td)) => {
                        parent.users.fetch_sub(1, Ordering::Relaxed);
                        if let Some(td) = td {
                            td.users.fetch_sub(1, Ordering::Relaxed);
                        }
                        this.context.objects.remove(Kind::ParentDomain, pd);
                    }
                    None => {
                        this.context.nic()?.dealloc_pd(this.id)?;
                        this.context.objects.remove(Kind::Pd, pd);
                    }
                }
            }
            drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
            Ok(())
        })
    }
);

pub(crate) unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    pointer(|| {
        let context = unsafe { Context::of(context)? };
        context.nic()?;
        if unsafe { arg(attr)? }.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        let public = UnsafeCell::new(ibv_td { context: context.public() });
        let td = Box::into_raw(Box::new(Td { public, context, users: AtomicU32::new(0) }));
        context.objects.add(Kind::Td, td);
        Ok(td.cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    code(|| {
        let this = unsafe { arg(td.cast::<Td>())? };
        if !this.context.is_dead() {
            if this.users.load(Ordering::Relaxed) > 0 {
                return Err(EBUSY);
            }
            this.context.objects.remove(Kind::Td, td);
        }
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        let context = unsafe { Context::of(context)? };
        let attr = unsafe { arg(attr)? };
        context.nic()?;
        let parent = unsafe { Pd::of(attr.pd)? };
        // The context is for allocators of the program, which EFA does not call.
        if attr.comp_mask & !IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
            return Err(EOPNOTSUPP);
        }
        let td = unsafe { attr.td.cast::<Td>().as_ref() };
        if parent.is_parent() {
            return Err(EINVAL);
        }
        parent.users.fetch_add(1, Ordering::Relaxed);
        if let Some(td) = td {
            td.users.fetch_add(1, Ordering::Relaxed);
        }
        // Wherever it is asked for, it belongs where the domain does, as in rdma-core.
        Ok(Pd::make(parent.context, parent.id, Some((parent, td))))
    })
}

/// What the flags permit. The kernel refuses what makes no sense anywhere, then EFA's driver what it does not have.
fn access(flags: u32) -> Result<Access, Errno> {
    let flags = flags & !IBV_ACCESS_OPTIONAL_RANGE;
    let local_write = flags & IBV_ACCESS_LOCAL_WRITE != 0;
    let remote_write = flags & IBV_ACCESS_REMOTE_WRITE != 0;
    if (flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0 && !local_write)
        || flags & !IBV_ACCESS_KNOWN != 0
    {
        return Err(EINVAL);
    }
    if flags & !(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) != 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(Access { local_write, remote_read: flags & IBV_ACCESS_REMOTE_READ != 0, remote_write })
}

unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> Result<*mut ibv_mr, Errno> {
    let pd = unsafe { Pd::of(pd)? };
    // Whole pages are translated.
    if !(addr.addr() as u64 ^ iova).is_multiple_of(mapping::page_size() as u64) {
        return Err(EINVAL);
    }
    let access = access(flags)?;
    if length == 0 || addr.addr().checked_add(length).is_none() || iova.checked_add(length as u64).is_none() {
        return Err(EINVAL);
    }
    mapping::check(addr.addr(), length, access.local_write)?;
    let memory = unsafe { RawRegion::new(addr.cast(), length) };
    let keys = pd.context.nic()?.reg_mr(pd.id, memory, iova, access)?;
    let public = UnsafeCell::new(ibv_mr {
        context: pd.context.public(),
        pd: pd.public(),
        addr,
        length,
        handle: keys.lkey,
        lkey: keys.lkey,
        rkey: keys.rkey,
    });
    let mr = Box::into_raw(Box::new(Mr { public, context: pd.context, lkey: keys.lkey }));
    pd.context.objects.add(Kind::Mr, mr);
    Ok(mr.cast())
}

export!(
    "IBVERBS_1.1",
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
        pointer(|| unsafe { register(pd, addr, length, addr.addr() as u64, access as u32) })
    }
);

export!(
    "IBVERBS_1.7",
    fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr {
        pointer(|| unsafe { register(pd, addr, length, iova, access as u32) })
    }
);

export!(
    "IBVERBS_1.8",
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: u32) -> *mut ibv_mr {
        pointer(|| unsafe { register(pd, addr, length, iova, access) })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        _pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int {
        let has = |flag| flags & flag != 0;
        let (errno, result) = if mr.is_null()
            || has(!IBV_REREG_MR_FLAGS_SUPPORTED)
            || (has(IBV_REREG_MR_CHANGE_TRANSLATION) && (addr.is_null() || length == 0))
            || (!has(IBV_REREG_MR_CHANGE_ACCESS) && access != 0)
        {
            (EINVAL, IBV_REREG_MR_ERR_INPUT)
        } else {
            // The device cannot.
            (EOPNOTSUPP, IBV_REREG_MR_ERR_CMD)
        };
        errno.set();
        result
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        code(|| {
            let this = unsafe { arg(mr.cast::<Mr>())? };
            if !this.context.is_dead() {
                this.context.nic()?.dereg_mr(this.lkey)?;
                this.context.objects.remove(Kind::Mr, mr);
            }
            drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
            Ok(())
        })
    }
);

/// The context of a memory region.
pub(crate) unsafe fn context_of_mr<'a>(mr: *const ibv_mr) -> Result<&'a Context, Errno> {
    Ok(unsafe { arg(mr.cast::<Mr>())? }.context)
}

/// Ends the registration in the card.
pub(crate) fn abandon_mr(mr: &Mr) {
    if let Ok(nic) = mr.context.nic() {
        // It is known to the card, because it was in the list of objects.
        let _ = nic.dereg_mr(mr.lkey);
    }
}

/// Destroys the domain in the card.
pub(crate) fn abandon_pd(pd: &Pd) {
    if let Ok(nic) = pd.context.nic() {
        // As above; what belonged to it went before it.
        let _ = nic.dealloc_pd(pd.id);
    }
}
