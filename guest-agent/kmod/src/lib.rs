//! Kernel module.
#![no_std]
