//! When and where the recorder's thread drains the layers: on which CPUs, at what priority and at what pace.

pub mod cpu_list;
pub mod polling;
pub mod save_pace;
pub mod scheduling;
pub mod work_alarm;
