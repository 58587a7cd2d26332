// What the files of the module add to it.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorcache::python {

class ModelObject;
class SessionObject;

void BindTokenizer(nanobind::module_& module);
nanobind::class_<ModelObject> BindModel(nanobind::module_& module);
// Also the methods of Model that make sessions.
nanobind::class_<SessionObject> BindSession(nanobind::module_& module, nanobind::class_<ModelObject>& model);
// The sampler, and the methods of Session that write.
void BindGeneration(nanobind::module_& module, nanobind::class_<SessionObject>& session);
void BindCheckpoints(nanobind::module_& module);
void BindOps(nanobind::module_& module);
void BindTraining(nanobind::module_& module);

}  // namespace tensorcache::python
