// torch.save's zip files (.pt, .pth, .bin), read and written without torch.
//
// A file is a zip archive of one folder: data.pkl, the saved object as a pickle; data/<k>,
// the bytes of storage k; byteorder, version and a few more small records. The pickle is
// read as data (pickle_reader.h): nothing is imported or called.
//
// Tensors are named by their path, joined with dots: {"model": {"fc.weight": t}} has
// model.fc.weight, a list has 0, 1, ..., and a file that is one bare tensor has "tensor".
// contents.objects is the tree with these names as leaves. Its types are those of Object;
// what torch has beyond them becomes the nearest of these: an OrderedDict a dict (its
// attributes, such as _metadata, are dropped), a Parameter a tensor, a torch.Size a
// tuple, a torch.dtype "torch.float32" and a torch.device "cuda:0" (text), a defaultdict a
// dict, a numpy scalar a number.
//
// An object of any other class is not made, but what it would be made of can be read, its
// tensors too: it becomes a dict of "__class__", the class's name, and its attributes, or
// of "__arguments__", "__items__", "__entries__" and "__state__", as far as the pickle has
// them. A class or function that stands alone becomes its name. contents.simplified lists
// them all.
//
// kUnsupported, naming the place: sparse and quantized tensors and subclasses, expanded
// views and those whose elements share bytes, objects that contain themselves or nest
// deeper than kMaxObjectDepth, functions that only an attack would name (os.system),
// big-endian files, torch.save's format before torch 1.6, TorchScript, and two tensors
// whose paths give one name. kCorrupt: what contradicts itself.
#pragma once

#include <memory>

#include "holdfast/formats/contents.h"

namespace holdfast {

// True for the first bytes of a zip archive, and of what torch wrote before 1.6, which
// open_torch then refuses by name.
bool looks_like_torch(ByteView head);

// Reads the directory and the pickle, no tensors. The names of one view (same storage,
// offset, shape, strides and dtype) are one tensor with ties; views that overlap in other
// ways are on holders of their own, all of them this file. The CRC of a record is checked
// when a tensor in it has been read in full (contents.h).
Result<Contents> open_torch(std::shared_ptr<const Source> source);

// Reads every record and checks its CRC, in bounded memory; kCorrupt names the record.
// Returns how
// many records could not be checked: torch can be told to write no CRCs.
Result<int64_t> verify_torch(std::shared_ptr<const Source> source);

// Streams the file in bounded memory. torch.load reads it with weights_only=True and with
// mmap=True. One storage a tensor, which its ties share; all on the CPU and without
// requires_grad.
//
// The object that torch.load gives is contents.objects with tensors at its leaves;
// tensors and ties that it does not place are added to its top, which must then be a dict,
// under their names. Where it is None, an OrderedDict of all names.
//
// kInvalid: a leaf that names no tensor, text that is not UTF-8, or too deep a tree.
// kUnsupported: an integer of more than 255 bytes, which torch does not read.
Result<void> write_torch(Sink& sink, const Contents& contents);

}  // namespace holdfast
