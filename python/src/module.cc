#include "module.h"

#include "errors.h"
#include "model.h"
#include "session.h"
#include "tensorcache/version.h"

NB_MODULE(_core, module) {
  namespace python = tensorcache::python;
  module.doc() = "The run half of tensorcache.";
  module.attr("version") = TENSORCACHE_VERSION;
  python::RegisterErrors();
  python::BindTokenizer(module);
  auto model = python::BindModel(module);
  auto session = python::BindSession(module, model);
  python::BindGeneration(module, session);
  python::BindCheckpoints(module);
  python::BindOps(module);
  python::BindTraining(module);
}
