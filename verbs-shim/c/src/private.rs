//! Names that must exist so that programs load, and that fail when called.
//!
//! rdma-core's own plug-ins (`libmlx5.so.1` and others, on which some programs depend) are linked against the inner interface
//! of libibverbs, whose node has the version of that interface in its name. None of it means anything here.

use std::arch::global_asm;
use std::ffi::{c_int, c_void};

use crate::errno::{ENOSYS, EOPNOTSUPP};

/// Stands for every function that is not supported and returns an error number.
#[unsafe(no_mangle)]
extern "C" fn srd_unsupported() -> c_int {
    EOPNOTSUPP.set();
    EOPNOTSUPP.0
}

/// The same for functions that return a pointer.
#[unsafe(no_mangle)]
extern "C" fn srd_unsupported_pointer() -> *mut c_void {
    EOPNOTSUPP.set();
    std::ptr::null_mut()
}

/// Stands for the plug-in registration: there are no plug-ins.
#[unsafe(no_mangle)]
extern "C" fn srd_ignored() {}

/// For programs from before 2007: the structures of that interface are not provided. They get no device to begin with.
#[unsafe(no_mangle)]
extern "C" fn srd_ancient() -> *mut c_void {
    ENOSYS.set();
    std::ptr::null_mut()
}

/// Whether plug-ins tolerate that a device vanished.
#[unsafe(no_mangle)]
static mut srd_allow_disassociate_destroy: bool = false;

macro_rules! aliases {
    ($target:literal, $at:literal, $($version:literal)*, $names:tt) => {
        $(aliases!(@ $target, $at, $version, $names);)*
    };
    (@ $target:literal, $at:literal, $version:literal, [$($name:ident)*]) => {
        $(global_asm!(concat!(".symver ", $target, ", ", stringify!($name), $at, $version));)*
    };
}

macro_rules! private {
    ($target:literal: $($name:ident)*) => {
        aliases!($target, "@@", "IBVERBS_PRIVATE_34", [$($name)*]);
        aliases!($target, "@", "IBVERBS_PRIVATE_59" "IBVERBS_PRIVATE_64" "IBVERBS_PRIVATE_65", [$($name)*]);
    };
}

private!("srd_unsupported":
    __ioctl_final_num_attrs execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq
    ibv_cmd_create_cq_ex ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp
    ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
    ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
    ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp
    ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq ibv_read_ibdev_sysfs_file
);
// Names that came after rdma-core 44, some of them without a new node.
private!("srd_unsupported":
    ibv_cmd_alloc_dmah ibv_cmd_create_comp_cntr ibv_cmd_create_cq_ex2 ibv_cmd_destroy_comp_cntr
    ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
    ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_port_speed ibv_cmd_read_comp_cntr
    ibv_cmd_read_err_comp_cntr ibv_cmd_reg_mr_ex ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
    ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free
);
private!("srd_unsupported_pointer":
    _verbs_init_and_alloc_context ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init ibv_wr_opcode_str verbs_open_device
);
private!("srd_ignored": __verbs_log verbs_init_cq verbs_set_ops verbs_uninit_context);
private!("srd_allow_disassociate_destroy": verbs_allow_disassociate_destroy);
// Defined with the other queries.
aliases!("srd_ibv_query_gid_type", "@", "IBVERBS_PRIVATE_59" "IBVERBS_PRIVATE_64" "IBVERBS_PRIVATE_65", [ibv_query_gid_type]);
aliases!("srd_ignored", "@@", "IBVERBS_PRIVATE_34", [verbs_register_driver_34]);
aliases!("srd_ignored", "@@", "IBVERBS_PRIVATE_59", [verbs_register_driver_59]);
aliases!("srd_ignored", "@@", "IBVERBS_PRIVATE_64", [verbs_register_driver_64]);
aliases!("srd_ignored", "@@", "IBVERBS_PRIVATE_65", [verbs_register_driver_65]);
aliases!("srd_ignored", "@", "IBVERBS_1.1", [ibv_register_driver]);

aliases!("srd_ancient", "@", "IBVERBS_1.0", [
    ibv_ack_async_event ibv_ack_cq_events ibv_alloc_pd ibv_attach_mcast ibv_close_device ibv_create_ah
    ibv_create_cq ibv_create_qp ibv_create_srq ibv_dealloc_pd ibv_dereg_mr ibv_destroy_ah ibv_destroy_cq
    ibv_destroy_qp ibv_destroy_srq ibv_detach_mcast ibv_free_device_list ibv_get_async_event ibv_get_cq_event
    ibv_get_device_guid ibv_get_device_list ibv_get_device_name ibv_modify_qp ibv_modify_srq ibv_open_device
    ibv_query_device ibv_query_gid ibv_query_pkey ibv_query_port ibv_query_qp ibv_query_srq ibv_reg_mr
    ibv_resize_cq
]);

// librdmacm's conversions between structures of the kernel's and the verbs' interface: no kernel gives it any.
aliases!("srd_ignored", "@@", "IBVERBS_1.0", [
    ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
]);
aliases!("srd_ignored", "@@", "IBVERBS_1.1", [ibv_copy_ah_attr_from_kern]);

// Shared receive queues, multicast, and what else the device does not have.
aliases!("srd_unsupported_pointer", "@@", "IBVERBS_1.1", [ibv_create_srq]);
aliases!("srd_unsupported", "@@", "IBVERBS_1.1", [
    ibv_modify_srq ibv_query_srq ibv_destroy_srq ibv_attach_mcast ibv_detach_mcast ibv_resize_cq ibv_resolve_eth_l2_from_gid
]);
aliases!("srd_unsupported_pointer", "@@", "IBVERBS_1.10", [ibv_import_device ibv_import_mr ibv_import_pd]);
aliases!("srd_ignored", "@@", "IBVERBS_1.10", [ibv_unimport_mr ibv_unimport_pd]);
aliases!("srd_unsupported_pointer", "@@", "IBVERBS_1.12", [ibv_reg_dmabuf_mr]);
aliases!("srd_unsupported_pointer", "@@", "IBVERBS_1.13", [ibv_import_dm]);
aliases!("srd_ignored", "@@", "IBVERBS_1.13", [ibv_unimport_dm]);
aliases!("srd_unsupported_pointer", "@@", "IBVERBS_1.15", [ibv_alloc_dmah ibv_reg_mr_ex]);
aliases!("srd_unsupported", "@@", "IBVERBS_1.15", [ibv_dealloc_dmah]);
aliases!("srd_unsupported_pointer", "@@", "IBVERBS_1.17", [ibv_alloc_buf ibv_reg_buf_mr]);
aliases!("srd_unsupported", "@@", "IBVERBS_1.17", [ibv_free_buf]);
aliases!("srd_unsupported_pointer", "@@", "IBVERBS_1.18", [ibv_create_comp_cntr]);
aliases!("srd_unsupported", "@@", "IBVERBS_1.18", [
    _ibv_query_comp_cntr_caps ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_read_comp_cntr
    ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_qp_attach_comp_cntr
]);
aliases!("srd_unsupported_fd", "@@", "IBVERBS_1.16", [ibv_dm_export_dmabuf_fd]);
aliases!("srd_unsupported_fd", "@@", "IBVERBS_1.18", [ibv_export_buf_dmabuf_fd]);
aliases!("srd_unsupported_pointer", "@@", "EFA_1.7", [efadv_create_comp_cntr]);

/// Stands for functions that return a file descriptor.
#[unsafe(no_mangle)]
extern "C" fn srd_unsupported_fd() -> c_int {
    EOPNOTSUPP.set();
    -1
}
